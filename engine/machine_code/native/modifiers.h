// Modifiers of each instruction that are supported in execution with real values. Any other modifier ends
// the execution, as values are never guessed.
#pragma once

// Modifiers of caching, scope and code layout, which change no value.
constexpr const char* NO_EFFECT = " E SYS GPU CTA SM VC STRONG WEAK CONSTANT PRIVATE MMIO EF EL LU EU NA NOLOCK LTC64B LTC128B LTC256B U L1 ";

#define COMPARISONS " LT LE GT GE EQ NE LTU LEU GTU GEU EQU NEU NUM NAN F T AND OR XOR "
#define ATOMIC_OPERATIONS " ADD MIN MAX AND OR XOR EXCH CAS INC DEC POPC 32 64 S32 S64 U32 F32 F64 F16x2 BF16x2 BF16_V2 FTZ RN "

inline const char* known_modifiers(Opcode op) {
    switch (op) {
    case OP_MOV: return " 32 64 U32 ";
    case OP_IADD3: return " X 64 ";
    case OP_IMAD: return " U32 WIDE HI X MOV SHL IADD ";
    case OP_LEA: return " HI X SX32 ";
    case OP_SHF: return " L R U32 S32 U64 S64 HI W ";
    case OP_SHL: case OP_SHR: return " U32 S32 W ";
    case OP_LOP3: return " LUT PAND ";
    case OP_LOP: return " AND OR XOR ";
    case OP_PLOP3: return " LUT AND ";
    case OP_ISETP: return COMPARISONS " U32 S32 U64 S64 64 EX ";
    case OP_SEL: return " 64 ";
    case OP_IMNMX: return " U32 S32 U64 S64 ";
    case OP_IMNMX3: case OP_VIADDMNMX: return " U32 S32 ";
    case OP_RPCMOV: return " 32 ";
    case OP_VABSDIFF: return " U32 ";
    case OP_POPC: case OP_BREV: case OP_IABS: case OP_PRMT: case OP_FSEL: case OP_P2R: case OP_R2P: case OP_S2R: case OP_ISCADD: return "";
    case OP_QSPC: return " S L G ";
    case OP_FLO: return " U32 SH ";
    case OP_SGXT: return " U32 W ";
    case OP_BMSK: return " C W ";
    case OP_VOTE: return " ANY ALL EQ ";
    case OP_MATCH: return " ANY ALL ";
    case OP_REDUX: return " SUM ADD MIN MAX AND OR XOR S32 U32 ";
    case OP_R2UR: return " FILL OR BROADCAST ";
    case OP_CS2R: return " 32 64 ";
    case OP_LDC: return " 64 128 U8 U16 ";
    case OP_FADD: case OP_FMUL: case OP_FFMA: return " FTZ RN RM RP RZ SAT ";
    case OP_FADD2: case OP_FMUL2: case OP_FFMA2: return " F32x2 RN ";
    case OP_FMNMX: case OP_FMNMX3: return " FTZ NAN ";
    case OP_FSETP: return COMPARISONS " FTZ ";
    case OP_FSET: return COMPARISONS " BF FTZ ";
    case OP_FCHK: return " DIVIDE ";
    case OP_MUFU: return " EX2 RCP RSQ LG2 SIN COS SQRT TANH RCP64H RSQ64H ";
    case OP_FRND: return " TRUNC FLOOR CEIL F16 FTZ ";
    case OP_I2F: return " RP RM RZ RN U64 S64 U32 S32 U16 S16 U8 S8 F16 F32 F64 ";
    case OP_F2I: return " TRUNC FLOOR CEIL NTZ FTZ U32 S32 U64 S64 F16 F32 F64 ";
    case OP_F2F: return " F16 BF16 F32 F64 RN RP RM RZ ";
    case OP_F2FP: return " F16 BF16 F32 PACK_AB RN RZ RELU E4M3 E5M2 SATFINITE UNPACK_B PACK_AB_MERGE_C UNPACK_B_MERGE_C ";
    case OP_HADD2: case OP_HMUL2: case OP_HFMA2: return " F32 BF16 BF16_V2 MMA SAT RELU ";
    case OP_HMNMX2: return " BF16 BF16_V2 NAN ";
    case OP_HSETP2: return COMPARISONS " BF16 BF16_V2 ";
    case OP_HSET2: return COMPARISONS " BF16 BF16_V2 BF ";
    case OP_DADD: case OP_DMUL: case OP_DFMA: return " RN ";
    case OP_DSETP: return COMPARISONS;
    case OP_LDS: case OP_STS: case OP_LDG: case OP_STG: case OP_LD: case OP_ST: case OP_LDL: case OP_STL:
        return " 32 64 128 U8 S8 U16 S16 ";
    case OP_LDSM: case OP_STSM: return " 16 M88 MT88 1 2 4 ";
    case OP_MOVM: return " 16 MT88 ";
    case OP_ATOMS: return ATOMIC_OPERATIONS " CAST SPIN ";
    case OP_ATOMG: case OP_RED: return ATOMIC_OPERATIONS;
    case OP_LDGSTS: return " BYPASS ACCESS 32 64 128 ZFILL ";
    case OP_SHFL: return " IDX UP DOWN BFLY ";
    case OP_HMMA: return " 16816 16832 1688 F32 F16 BF16 S8 U8 SAT E4M3 E5M2 ";
    case OP_BAR: return " SYNC ARV RED AND OR POPC DEFER_BLOCKING ";
    case OP_B2R: return " RESULT ";
    case OP_SYNCS: return " ARRIVE TRANS64 RED A1T0 A0T1 A0TR A0TX EXCH 64 PHASECHK TRYWAIT CCTL IV ";
    case OP_ARRIVES: return " LDGSTSBAR 64 TRANSCNT ";
    case OP_UTMALDG: return " 1D 2D 3D 4D 5D MULTICAST ";
    case OP_UTMASTG: return " 1D 2D 3D 4D 5D ";
    default: return nullptr;  // modifiers of branches and ordering change no value
    }
}

// The first unsupported modifier; "" if all are supported.
inline std::string unknown_modifier(const Instruction& i) {
    const char* known = known_modifiers(i.op);
    if (!known) return "";
    for (size_t dot = i.name.find('.'); dot != std::string::npos;) {
        const size_t end = i.name.find('.', dot + 1);
        const std::string part = " " + i.name.substr(dot + 1, end == std::string::npos ? end : end - dot - 1) + " ";
        if (std::string(known).find(part) == std::string::npos && std::string(NO_EFFECT).find(part) == std::string::npos)
            return part.substr(1, part.size() - 2);
        dot = end;
    }
    return "";
}
