// nvdisasm's text of one instruction → what the emulator executes.
#pragma once

#include "half.h"

#include <algorithm>
#include <bitset>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#define SASS_OPCODES(X)                                                                            \
    X(MOV) X(IADD3) X(IMAD) X(LEA) X(SHF) X(SHL) X(SHR) X(LOP3) X(LOP) X(PLOP3) X(ISETP) X(SEL)       \
    X(IMNMX) X(IMNMX3) X(VIADDMNMX) X(VABSDIFF) X(RPCMOV) X(IABS) X(PRMT) X(POPC) X(FLO) X(BREV) X(SGXT) X(BMSK) X(P2R)     \
    X(R2P) X(VOTE) X(MATCH) X(REDUX) X(R2UR) X(S2R) X(CS2R) X(LDC) X(IDP) X(ELECT) X(ISCADD)          \
    X(FADD) X(FMUL) X(FFMA) X(FADD2) X(FMUL2) X(FFMA2) X(FMNMX) X(FMNMX3) X(FSEL) X(FSETP) X(FSET)    \
    X(FCHK) X(MUFU) X(FRND) X(I2F) X(F2I) X(F2F) X(F2FP) X(HADD2) X(HFMA2) X(HMUL2) X(HSETP2)         \
    X(HMNMX2) X(HSET2) X(QSPC) X(DADD) X(DMUL) X(DFMA) X(DSETP) X(LDS) X(STS) X(LDSM) X(STSM) X(ATOMS) X(LDG) X(STG)   \
    X(LD) X(ST) X(LDL) X(STL) X(ATOMG) X(RED) X(LDGSTS) X(LDGDEPBAR) X(DEPBAR) X(SHFL) X(MOVM)        \
    X(HMMA) X(HGMMA) X(WARPGROUP) X(BAR) X(B2R) X(SYNCS) X(ARRIVES) X(UTMALDG) X(UTMASTG)             \
    X(UBLKCP) X(UTMACMDFLUSH) X(SETMAXREG) X(BRA) X(BRX) X(CALL) X(RET) X(EXIT) X(BSSY) X(BSYNC)      \
    X(BREAK) X(BMOV) X(LEPC) X(TRAP) X(NOTHING) X(UNKNOWN)

#define SASS_MODIFIERS(X)                                                                          \
    X(X) X(U8) X(S8) X(U16) X(S16) X(U32) X(S32) X(U64) X(S64) X(HI) X(L) X(R) X(W) X(WIDE) X(SX32)   \
    X(EX) X(AND) X(OR) X(XOR) X(LT) X(LE) X(GT) X(GE) X(EQ) X(NE) X(LTU) X(LEU) X(GTU) X(GEU) X(EQU)  \
    X(NEU) X(NUM) X(NAN_) X(T) X(F) X(F16) X(F32) X(F64) X(BF16) X(BF16_V2) X(TRUNC) X(FLOOR)         \
    X(CEIL) X(RP) X(RM) X(RZ) X(FTZ) X(SAT) X(RCP) X(RSQ) X(EX2) X(LG2) X(SIN) X(COS) X(SQRT)         \
    X(TANH) X(RCP64H) X(RSQ64H) X(IDX) X(UP) X(DOWN) X(BFLY) X(ANY) X(ALL) X(E) X(PAND) X(SH)         \
    X(SYNC) X(ARV) X(RED) X(POPC) X(ADD) X(MIN) X(MAX) X(SUM) X(CAS) X(EXCH) X(CLEAR) X(RESULT)       \
    X(DIV) X(ARRIVE) X(PHASECHK) X(MULTICAST) X(A1T0) X(A0T1) X(TRANS64) X(DEPBAR) X(U) X(MXM) X(CCTL) X(NAN)      \
    X(SCR) X(INC) X(DEC) X(B) X(TRAP) X(REL) X(ABS) X(RELU) X(LDGSTSBAR) X(ARRIVEBAR) X(CAST) X(S) X(BF) X(TF32) X(F16x2) X(BF16x2)     \
    X(EXCLUSIVE) X(ZFILL) X(A0TR) X(A0TX) X(E4M3) X(E5M2) X(SATFINITE) X(UNPACK_B) X(PACK_AB_MERGE_C) X(UNPACK_B_MERGE_C)

enum Opcode : int {
#define X(name) OP_##name,
    SASS_OPCODES(X)
#undef X
};

enum Modifier : int {
#define X(name) MOD_##name,
    SASS_MODIFIERS(X)
#undef X
    NUM_MODIFIERS
};

enum class Kind : uint8_t { NONE, REG, UREG, PRED, UPRED, IMM, CONST, ADDR, SPECIAL, BREG, TEXT };

constexpr int RZ = 255, PT = 7, NUM_BARRIERS = 16;

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }

// A number from the text, which is untrusted: fails unless it is below `end`.
inline int number_below(int end, const std::string& text, const char* what) {
    const unsigned long number = std::strtoul(text.c_str(), nullptr, 10);
    if (number >= static_cast<unsigned long>(end)) throw std::runtime_error("it names " + (what + text) + ", which no GPU has");
    return static_cast<int>(number);
}

struct Operand {
    Kind kind = Kind::NONE;
    bool neg = false, abs = false, inv = false;
    bool wide = false;    // ADDR: the vector base is a register pair
    bool uwide = false;   // ADDR: the uniform base is a pair
    bool is_float = false;
    bool whole_float = false;  // a 32-bit operand of an instruction on halves: suffix .F32
    uint8_t half = 0;     // 1: H0_H0, 2: H1_H1, 3: H1_H0 or none; 8 + n: byte n
    uint8_t scale = 1;
    int16_t reg = RZ;     // REG, UREG, PRED …; ADDR and CONST: vector base
    int16_t ureg = -1;    // ADDR and CONST: uniform base
    uint8_t bank = 0;
    int64_t imm = 0;      // IMM, ADDR and CONST offset, SPECIAL number
    double value = 0;     // IMM given as a decimal
    std::string text;
};

// Operands by role: predicates written (at the front or right after the destination), registers and
// values (the destination first), and predicates read (at the end).
struct Instruction {
    Opcode op = OP_UNKNOWN;
    std::bitset<NUM_MODIFIERS> m;
    int guard = PT;
    bool guard_not = false, guard_uniform = false;
    int width = 4;            // bytes that a lane moves
    int count = 0;            // LDSM matrices, DEPBAR groups, N of HGMMA
    std::vector<Operand> raw, pd, s, ps;
    int target = -1;          // index of a branch's target
    int64_t address = 0;
    std::string name;         // mnemonic
    std::string unknown;      // an unsupported modifier
    bool uniform = false;     // on the uniform datapath
    bool straight = false;    // continues with the next instruction: no branch, no wait
    bool transposes = false;  // LDSM, STSM
    bool polls = false;       // a load in a loop that may wait for another CTA
    bool rounds = false;      // rounds other than to nearest, flushes denormals or saturates
    bool has(Modifier which) const { return m[which]; }
};

inline bool starts(const std::string& text, const char* with) {
    return text.compare(0, std::strlen(with), with) == 0;
}

inline const std::unordered_map<std::string, Opcode>& opcodes() {
    static const std::unordered_map<std::string, Opcode> names = [] {
        std::unordered_map<std::string, Opcode> table = {
#define X(name) {#name, OP_##name},
            SASS_OPCODES(X)
#undef X
        };
        const std::pair<const char*, Opcode> others[] = {
            {"MOV32I", OP_MOV}, {"IADD", OP_IADD3}, {"IADD32I", OP_IADD3}, {"VIADD", OP_IADD3},
            {"LOP32I", OP_LOP}, {"VIMNMX", OP_IMNMX}, {"VIMNMX3", OP_IMNMX3}, {"S2UR", OP_S2R},
            {"LDCU", OP_LDC}, {"ULDC", OP_LDC}, {"CS2UR", OP_CS2R}, {"I2FP", OP_I2F}, {"F2IP", OP_F2I}, {"I2I", OP_MOV},
            {"FADD32I", OP_FADD}, {"FMUL32I", OP_FMUL}, {"FFMA32I", OP_FFMA},
            {"HADD2_32I", OP_HADD2}, {"HMUL2_32I", OP_HMUL2}, {"HFMA2_32I", OP_HFMA2},
            {"CREDUX", OP_REDUX}, {"ATOM", OP_ATOMG}, {"REDG", OP_RED}, {"IMMA", OP_HMMA},
            {"BMMA", OP_HMMA}, {"DMMA", OP_HMMA}, {"QMMA", OP_HMMA}, {"OMMA", OP_HMMA},
            {"IGMMA", OP_HGMMA}, {"QGMMA", OP_HGMMA}, {"BGMMA", OP_HGMMA}, {"JMP", OP_BRA},
            {"JMX", OP_BRX}, {"BRXU", OP_BRX}, {"USETMAXREG", OP_SETMAXREG}, {"BPT", OP_TRAP},
            {"UP2UR", OP_P2R}, {"UR2UP", OP_R2P}, {"VOTEU", OP_VOTE}, {"PSETP", OP_PLOP3},
            {"NOP", OP_NOTHING}, {"YIELD", OP_NOTHING}, {"NANOSLEEP", OP_NOTHING},
            {"WARPSYNC", OP_NOTHING}, {"MEMBAR", OP_NOTHING}, {"FENCE", OP_NOTHING},
            {"ERRBAR", OP_NOTHING}, {"CGAERRBAR", OP_NOTHING}, {"CCTL", OP_NOTHING},
            {"CCTLL", OP_NOTHING}, {"CCTLT", OP_NOTHING}, {"UTMACCTL", OP_NOTHING},
            {"UTMAPF", OP_NOTHING}, {"UBLKPF", OP_NOTHING}, {"PREEXIT", OP_NOTHING},
            {"ACQBULK", OP_NOTHING}, {"WARPGROUPSET", OP_NOTHING}, {"UCGABAR_ARV", OP_NOTHING},
            {"UCGABAR_WAIT", OP_NOTHING}, {"PMTRIG", OP_NOTHING}, {"KILL", OP_EXIT},
        };
        for (const auto& [name, op] : others) table[name] = op;
#if EXECUTES
        table["ENDCOLLECTIVE"] = OP_NOTHING;
#endif
        return table;
    }();
    return names;
}

inline const std::unordered_map<std::string, int>& modifiers() {
    static const std::unordered_map<std::string, int> names = {
#define X(name) {#name, MOD_##name},
        SASS_MODIFIERS(X)
#undef X
    };
    return names;
}

inline const char* const SPECIALS[] = {
    "SR_TID.X", "SR_TID.Y", "SR_TID.Z", "SR_CTAID.X", "SR_CTAID.Y", "SR_CTAID.Z", "SR_LANEID",
    "SR_NTID", "SR_CgaCtaId", "SR_LEMASK", "SR_LTMASK", "SR_EQMASK", "SR_GEMASK", "SR_GTMASK",
    "SR_VIRTID", "SR_CLOCKLO", "SR_CLOCKHI", "SR_SMEMSZ", "SR_TID",
};
enum { SR_TIDX, SR_TIDY, SR_TIDZ, SR_CTAX, SR_CTAY, SR_CTAZ, SR_LANE, SR_NTID, SR_CGA, SR_LE, SR_LT,
       SR_EQ, SR_GE, SR_GT, SR_VIRT, SR_CLOCKLO, SR_CLOCKHI, SR_SMEMSZ, SR_TID, SR_OTHER };

inline int64_t parse_integer(const std::string& text) {
    const bool minus = !text.empty() && text[0] == '-';
    const size_t start = minus || (!text.empty() && text[0] == '+');
    const uint64_t value = std::strtoull(text.c_str() + start, nullptr, 0);
    return static_cast<int64_t>(minus ? 0 - value : value);
}

// One term of an address or of a constant's offset: a register or a number.
inline void parse_term(std::string term, bool minus, Operand& out) {
    if (term.empty()) return;
    if (term[0] == 'R' || starts(term, "UR")) {
        const bool uniform = term[0] == 'U';
        size_t dot = term.find('.');
        const std::string number = term.substr(uniform ? 2 : 1, dot - (uniform ? 2 : 1));
        const int reg = number == "Z" ? RZ : number_below(RZ, number, uniform ? "UR" : "R");
        const std::string suffix = dot == std::string::npos ? "" : term.substr(dot);
        if (uniform) {
            if (number != "Z") out.ureg = static_cast<int16_t>(reg);
            out.uwide = suffix.find(".64") != std::string::npos;
        } else {
            out.reg = static_cast<int16_t>(reg);
            out.wide = suffix.find(".64") != std::string::npos;
            if (suffix.find(".U32") != std::string::npos || suffix.find(".S32") != std::string::npos) out.half = 1;
            if (const size_t x = suffix.find(".X"); x != std::string::npos)
                out.scale = static_cast<uint8_t>(std::atoi(suffix.c_str() + x + 2));
        }
    } else {
        const int64_t value = parse_integer(term);
        out.imm = static_cast<int64_t>(static_cast<uint64_t>(out.imm) + static_cast<uint64_t>(minus ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value)));
    }
}

inline void parse_terms(const std::string& inside, Operand& out) {
    std::string term;
    bool minus = false;
    for (char c : inside + "+") {
        if (c == '+' || c == '-') {
            if (!term.empty()) parse_term(term, minus, out);
            if (!term.empty() || c == '-') minus = c == '-';
            term.clear();
        } else if (c != ' ') {
            term += c;
        }
    }
}

inline Operand parse_operand(std::string text) {
    Operand o;
    o.text = text;
    for (size_t at; (at = text.find(".reuse")) != std::string::npos;) text.erase(at, 6);
    o.whole_float = text.size() > 4 && text.compare(text.size() - 4, 4, ".F32") == 0;
    if (text.empty()) return o;
    if (text[0] == '`' || text[0] == '(') { o.kind = Kind::TEXT; return o; }
    size_t p = 0;
    if (text[p] == '-' && p + 1 < text.size() && !is_digit(text[p + 1]) && !starts(text, "-INF") && !starts(text, "-QNAN")) { o.neg = true; p++; }
    if (text[p] == '~' || text[p] == '!') { o.inv = true; p++; }
    if (text[p] == '|') { o.abs = true; p++; }
    std::string body = text.substr(p);
    if (const size_t bar = body.find('|'); bar != std::string::npos) body.erase(bar, 1);
    if (starts(body, "c[") || starts(body, "cx[")) {
        o.kind = Kind::CONST;
        const size_t close = body.find(']'), open2 = body.find('[', close);
        const std::string bank = body.substr(body.find('[') + 1, close - body.find('[') - 1);
        o.bank = starts(bank, "U") ? 0xff : static_cast<uint8_t>(parse_integer(bank));
        if (open2 != std::string::npos) parse_terms(body.substr(open2 + 1, body.rfind(']') - open2 - 1), o);
        return o;
    }
    if (body.find('[') != std::string::npos) {
        o.kind = Kind::ADDR;
        const size_t open = body.rfind('['), close = body.find(']', open);
        if (starts(body, "gdesc")) o.kind = Kind::TEXT;
        parse_terms(body.substr(open + 1, close - open - 1), o);
        return o;
    }
    auto half_of = [&](const std::string& suffix) {
        if (suffix.find("H0_H0") != std::string::npos) o.half = 1;
        else if (suffix.find("H1_H1") != std::string::npos) o.half = 2;
        else if (suffix.find(".H1") != std::string::npos && suffix.find("H1_H0") == std::string::npos) o.half = 2;
        else if (suffix.find(".H0") != std::string::npos && suffix.find("H0_H") == std::string::npos) o.half = 1;
        else if (const size_t b = suffix.find(".B"); b != std::string::npos && suffix[b + 2] >= '0' && suffix[b + 2] < '4') o.half = static_cast<uint8_t>(8 + (suffix[b + 2] - '0'));
        if (suffix.find(".64") != std::string::npos) o.wide = true;
    };
    const size_t dot = body.find('.');
    const std::string head = body.substr(0, dot), suffix = dot == std::string::npos ? "" : body.substr(dot);
    auto numbered = [&](const char* prefix) {
        const size_t n = std::strlen(prefix);
        return head.size() > n && starts(head, prefix) &&
               (head.substr(n) == "Z" || head.substr(n) == "T" || head.find_first_not_of("0123456789", n) == std::string::npos);
    };
    if (numbered("R") || head == "SRZ") {
        o.kind = Kind::REG;
        o.reg = head == "RZ" || head == "SRZ" ? RZ : static_cast<int16_t>(number_below(RZ, head.substr(1), "R"));
        half_of(suffix);
    } else if (numbered("UR")) {
        o.kind = Kind::UREG;
        o.reg = head == "URZ" ? RZ : static_cast<int16_t>(number_below(RZ, head.substr(2), "UR"));
        half_of(suffix);
    } else if (numbered("P")) {
        o.kind = Kind::PRED;
        o.reg = head == "PT" ? PT : static_cast<int16_t>(number_below(PT + 1, head.substr(1), "P"));
    } else if (numbered("UP")) {
        o.kind = Kind::UPRED;
        o.reg = head == "UPT" ? PT : static_cast<int16_t>(number_below(PT + 1, head.substr(2), "UP"));
    } else if (numbered("B")) {
        o.kind = Kind::BREG;
        o.reg = static_cast<int16_t>(number_below(NUM_BARRIERS, head.substr(1), "B"));
    } else if (starts(body, "SR_")) {
        o.kind = Kind::SPECIAL;
        o.imm = SR_OTHER;
        for (int n = 0; n < SR_OTHER; n++)
            if (body == SPECIALS[n]) o.imm = n;
    } else if (body.find("0x") != std::string::npos) {
        o.kind = Kind::IMM;
        o.imm = parse_integer(body);
        if (o.neg) { o.imm = static_cast<int64_t>(0 - static_cast<uint64_t>(o.imm)); o.neg = false; }
    } else if (is_digit(body[0]) || body[0] == '-' || body[0] == '+' || body[0] == '.' || starts(body, "INF") || starts(body, "QNAN")) {
        o.kind = Kind::IMM;
        o.is_float = true;
        const bool minus = body[0] == '-';
        const std::string digits = body[0] == '-' || body[0] == '+' ? body.substr(1) : body;
        double value = starts(digits, "INF") ? INFINITY : starts(digits, "QNAN") || starts(digits, "SNAN") ? NAN : std::strtod(digits.c_str(), nullptr);
        o.value = minus ? -value : value;
        if (minus && std::isnan(value)) o.value = std::copysign(NAN, -1.0);
    } else {
        o.kind = Kind::TEXT;
    }
    return o;
}

inline void resolve_immediates(Instruction& i) {
    // The opcode says whether decimals are halves, doubles or floats; halves come in pairs, high first.
    const bool packed = starts(i.name, "H") && i.op != OP_HMMA && i.op != OP_HGMMA;
    const bool bfloat = i.has(MOD_BF16) || i.has(MOD_BF16_V2);
    std::vector<Operand> merged;
    for (size_t n = 0; n < i.raw.size(); n++) {
        Operand o = i.raw[n];
        if (o.kind == Kind::IMM && o.is_float) {
            if (packed) {
                auto encode = [&](double v) { return bfloat ? float_to_bfloat(static_cast<float>(v)) : float_to_half(static_cast<float>(v)); };
                uint32_t high = encode(o.value), low = high;
                if (n + 1 < i.raw.size() && i.raw[n + 1].kind == Kind::IMM && i.raw[n + 1].is_float) low = encode(i.raw[++n].value);
                o.imm = high << 16 | low;
            } else if (i.name[0] == 'D') {
                uint64_t bits;
                std::memcpy(&bits, &o.value, 8);
                o.imm = static_cast<int64_t>(bits);
                o.wide = true;
            } else {
                o.imm = bits_of(static_cast<float>(o.value));
            }
        }
        merged.push_back(o);
    }
    i.raw = merged;
}

inline Instruction decode(const std::string& guard, const std::string& mnemonic, const std::vector<std::string>& operands) {
    Instruction i;
    i.name = mnemonic;
    if (!guard.empty()) {
        const Operand g = parse_operand(guard);
        if (g.kind != Kind::PRED && g.kind != Kind::UPRED) throw std::runtime_error("its guard " + guard + " is not a predicate");
        i.guard = g.reg, i.guard_not = g.inv, i.guard_uniform = g.kind == Kind::UPRED;
    }
    size_t dot = mnemonic.find('.');
    std::string opcode = mnemonic.substr(0, dot);
    const auto& names = opcodes();
    auto it = names.find(opcode);
    if (it == names.end() && opcode[0] == 'U') it = names.find(opcode.substr(1));
    if (it != names.end()) i.op = it->second;
    i.uniform = opcode[0] == 'U';
    while (dot != std::string::npos) {
        const size_t end = mnemonic.find('.', dot + 1);
        const std::string part = mnemonic.substr(dot + 1, end == std::string::npos ? end : end - dot - 1);
        if (auto known = modifiers().find(part); known != modifiers().end()) i.m[known->second] = true;
        if (part == "64") i.width = 8;
        else if (part == "128") i.width = 16;
        else if (part == "256") i.width = 32;
        else if (part == "U16" || part == "S16" || part == "16") i.width = 2;
        else if (part == "U8" || part == "S8") i.width = 1;
        const bool is_type = part == "16" && (i.op == OP_LDSM || i.op == OP_STSM);  // a single matrix has no number
        if (!part.empty() && is_digit(part[0]) && !is_type) i.count = static_cast<int>(std::min(1ul << 18, std::strtoul(part.c_str(), nullptr, 10)));
        if (const size_t x = part.find('x'); x != std::string::npos && is_digit(part[0]))  // HGMMA.64x256x16
            i.count = static_cast<int>(std::min(1024ul, std::strtoul(part.c_str() + x + 1, nullptr, 10)));
        dot = end;
    }
    for (const auto& text : operands) i.raw.push_back(parse_operand(text));
    i.straight = i.op < OP_LDS || (i.op >= OP_LDS && i.op <= OP_LDGSTS) || i.op == OP_SHFL || i.op == OP_MOVM || i.op == OP_HMMA;
    i.transposes = mnemonic.find(".MT") != std::string::npos || mnemonic.find(".T.") != std::string::npos;
    i.polls = mnemonic.find(".STRONG") != std::string::npos;
    i.rounds = i.has(MOD_RP) || i.has(MOD_RM) || i.has(MOD_RZ) || i.has(MOD_FTZ) || i.has(MOD_SAT);
    resolve_immediates(i);
    size_t n = 0;
    auto is_predicate = [&](size_t k) { return k < i.raw.size() && (i.raw[k].kind == Kind::PRED || i.raw[k].kind == Kind::UPRED); };
    for (; is_predicate(n); n++) i.pd.push_back(i.raw[n]);
    bool behind_destination = i.pd.empty();
    for (; n < i.raw.size(); n++) {
        if (is_predicate(n)) {
            (behind_destination && i.s.size() == 1 ? i.pd : i.ps).push_back(i.raw[n]);
        } else if (i.raw[n].kind != Kind::NONE) {
            i.s.push_back(i.raw[n]);
        }
    }
    return i;
}
