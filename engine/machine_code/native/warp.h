// A warp: registers, lanes and what they wait for, operands, execution. Included by emulator.cpp.

struct Warp {
    Cta& cta;
    int number;
    Lanes R[256];
    // Eight zeros follow the uniform registers, for vectors that begin at the last ones.
    Marks rmarks[256] = {}, umarks[256 + 8] = {}, pmarks[8] = {}, upmarks[8] = {};
    uint32_t U[256 + 8] = {};
    uint32_t P[8], UP[8];
    int pc[32];
    uint32_t alive = 0, blocked = 0;
    uint32_t exclusive = 0;  // lanes that run alone until their collective is complete; 0: all lanes run
    Lanes rpc[2] = {};
    uint32_t B[16] = {};        // lanes for which a convergence barrier waits
    uint32_t at_sync[16] = {};  // and the lanes that have arrived
    uint32_t at_bar[16] = {};   // lanes waiting at a CTA barrier
    uint32_t at_mbar = 0;
    std::map<uint64_t, int> polled;  // by mbarrier: the phase in which this warp arrived, or that it read
    int bar_result = 0;
    int64_t turn_ends = 0;      // number of the CTA's steps at which other CTAs run
    std::vector<uint8_t> local;
    std::vector<uint32_t> local_data;  // [word] mask of lanes whose word depends on loaded data
    Trace trace;
    // cp.async: (address, bytes) of each copy, and the ends of the committed groups.
    std::vector<std::pair<uint64_t, int>> copies;
    std::vector<size_t> copy_groups;
    // Of the current instruction:
    Marks marks = {};           // marks of its sources so far
    uint32_t on = 0;            // lanes that execute it
    int index = 0;

    Warp(Cta& cta, int number);

    [[noreturn]] void refuse(const char* what) const;  // fails at the current instruction

    // ---- reading and writing operands ----

    uint32_t constant(const Operand& o, int word);

    int register_of(const Operand& o, int word) const {  // a vector may end after the last one
        if (o.reg == RZ) return RZ;
        if (o.reg + word >= RZ) refuse("uses a register past the last one");
        return o.reg + word;
    }

    const Lanes& read(const Operand& o, Lanes& t, int word = 0) {
        switch (o.kind) {
        case Kind::REG: {
            const int r = register_of(o, word);
            marks |= rmarks[r];
            return R[r];
        }
        case Kind::UREG: {
            const int r = register_of(o, word);
            marks |= umarks[r];
            for (auto& x : t.v) x = U[r];
            return t;
        }
        case Kind::CONST: {
            if (o.reg != RZ) {  // a table: each lane has its own index
                const uint32_t executing = on;
                for (int l = 0; l < 32; l++)
                    if (executing >> l & 1) on = 1u << l, t[l] = constant(o, word);
                on = executing;
                return t;
            }
            const uint32_t value = constant(o, word);
            for (auto& x : t.v) x = value;
            return t;
        }
        case Kind::IMM: {
            const uint32_t value = word ? static_cast<uint32_t>(o.imm >> 32) : static_cast<uint32_t>(o.imm);
            for (auto& x : t.v) x = value;
            return t;
        }
        default:
            if (REAL && o.kind == Kind::TEXT) fail(cta_code(), "has the operand " + o.text + ", which is not supported here");
            for (auto& x : t.v) x = 0;
            return t;
        }
    }

    const Instruction& cta_code() const;  // the current instruction

    // An integer operand with its negation (two's complement), complement or absolute value.
    const Lanes& integer(const Operand& o, Lanes& t) {
        const Lanes& v = read(o, t);
        if (!o.neg && !o.inv && !o.abs) return v;
        for (int l = 0; l < 32; l++) {
            uint32_t x = v[l];
            if (o.abs) x = static_cast<int32_t>(x) < 0 ? 0u - x : x;
            if (o.inv) x = ~x;
            t[l] = o.neg ? 0u - x : x;
        }
        return t;
    }

    const Lanes& floating(const Operand& o, Lanes& t) {
        const Lanes& v = read(o, t);
        if (!o.neg && !o.abs) return v;
        for (int l = 0; l < 32; l++) {
            uint32_t x = v[l];
            if (o.abs) x &= 0x7fffffffu;
            t[l] = o.neg ? x ^ 0x80000000u : x;
        }
        return t;
    }

    void read_wide(const Operand& o, Wide& out) {
        Lanes t;
        const Lanes& low = read(o, t);
        for (int l = 0; l < 32; l++) out[l] = low[l];
        const Lanes& high = read(o, t, 1);
        for (int l = 0; l < 32; l++) out[l] |= static_cast<uint64_t>(high[l]) << 32;
        if (o.neg)
            for (auto& x : out.v) x = 0 - x;
    }

    uint32_t predicate(const Operand& o) {
        const bool u = o.kind == Kind::UPRED;
        if (!u && o.kind != Kind::PRED) refuse("has an operand form that is not supported here");
        const uint32_t value = u ? UP[o.reg] : P[o.reg];
        marks |= u ? upmarks[o.reg] : pmarks[o.reg];
        return o.inv ? ~value : value;
    }

    void write(const Operand& o, const Lanes& v, int word = 0) {
        if (o.reg == RZ || !on) return;
        if (o.kind != Kind::REG && o.kind != Kind::UREG) return;
        const int r = register_of(o, word);
        if (o.kind == Kind::UREG) {
            const int first = __builtin_ctz(on);
            U[r] = v[first], umarks[r] = spread(marks, 1u << first);
            return;
        }
        if (on == FULL) {
            R[r] = v, rmarks[r] = marks;
            return;
        }
        for (int l = 0; l < 32; l++) R[r][l] = on >> l & 1 ? v[l] : R[r][l];
        rmarks[r] = (rmarks[r] & ~on) | (marks & on);
    }

    void depends_on_data() { marks[0] = FULL; }

    void steered();  // records that a predicate or target depends on the marks

    void write_wide(const Operand& o, const Wide& v) {
        Lanes t;
        for (int l = 0; l < 32; l++) t[l] = static_cast<uint32_t>(v[l]);
        write(o, t);
        for (int l = 0; l < 32; l++) t[l] = static_cast<uint32_t>(v[l] >> 32);
        write(o, t, 1);
    }

    void write_predicate(const Operand& o, uint32_t value) {
        if (o.reg == PT || !on || (o.kind != Kind::PRED && o.kind != Kind::UPRED)) return;
        if (o.kind == Kind::UPRED) {
            const int first = __builtin_ctz(on);
            UP[o.reg] = value >> first & 1 ? FULL : 0;
            upmarks[o.reg] = spread(marks, 1u << first);
            return;
        }
        P[o.reg] = (P[o.reg] & ~on) | (value & on);
        pmarks[o.reg] = (pmarks[o.reg] & ~on) | (marks & on);
    }

    void addresses(const Operand& o, bool global, Wide& out);
    void touch_box(const Instruction& i, Row& row, const uint32_t* coordinates);

    // ---- running ----

    bool run();  // until all lanes wait or have exited, or the turn ends; returns whether anything was executed
    void step(const Instruction& i, uint32_t active, int here);
    void arithmetic(const Instruction& i);
    void floats(const Instruction& i);
    void fp8(const Instruction& i);
    void halves(const Instruction& i);
    void compare_halves(const Instruction& i);
    void doubles(const Instruction& i);
    int memory(const Instruction& i);  // returns its row, -1: none, -2: it waits
    int poll(uint64_t mbarrier, const Instruction& i);
#if EXECUTES
#include "execute_warp.h"
#endif
    int barriers(const Instruction& i, bool& moves);
    void copies_land(int32_t open_groups) {  // cp.async completes: its writes happen now
        const size_t open = static_cast<size_t>(std::max(0, open_groups));
        if (copy_groups.size() <= open) return;
        const size_t done = copy_groups[copy_groups.size() - open - 1];
        land(done);
        copy_groups.erase(copy_groups.begin(), copy_groups.end() - static_cast<std::ptrdiff_t>(open));
        for (size_t& end : copy_groups) end -= done;
    }
    void land(size_t count);
    void sync(int b) {  // releases the lanes of a complete convergence barrier
        if (at_sync[b] && (B[b] & alive & ~at_sync[b]) == 0) {
            for (int l = 0; l < 32; l++)
                if (at_sync[b] >> l & 1) pc[l]++;
            blocked &= ~at_sync[b];
            at_sync[b] = 0;
        }
    }
};
