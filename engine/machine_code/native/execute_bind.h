// Binds forms of instructions to the functions of execute_quick.h and execute_quick_memory.h. Other forms
// go through Warp::step. Included by emulator.cpp.

struct Binder {
    const Instruction& i;
    Quick q;

    explicit Binder(const Instruction& instruction) : i(instruction) {
        q.full = &i;
        q.guard = static_cast<uint8_t>(i.guard), q.guard_not = i.guard_not, q.guard_uniform = i.guard_uniform;
        q.guarded = i.guard != PT || i.guard_not;
        q.straight = i.straight;
    }

    static bool is_register(const Operand& o, int words = 1) { return o.kind == Kind::REG && o.reg != RZ && o.reg + words <= RZ; }

    bool take(size_t n, Source& s) {  // reads operand n as a source
        if (n >= i.s.size()) return false;
        const Operand& o = i.s[n];
        if (o.half || o.wide || o.whole_float || (o.neg && o.inv)) return false;
        if (o.kind != Kind::REG && o.kind != Kind::UREG && o.kind != Kind::IMM && (o.kind != Kind::CONST || o.reg != RZ)) return false;
        s.kind = o.kind, s.neg = o.neg, s.abs = o.abs, s.inv = o.inv, s.reg = o.reg, s.operand = &o;
        s.value = static_cast<uint32_t>(o.imm);
        return true;
    }
    bool take_integer(size_t n, Source& s) { return take(n, s) && !s.abs; }
    bool take_plain(size_t n, Source& s) { return take(n, s) && s.plain(); }

    bool sets(int words = 1) {  // the destination: registers, not the zero register
        if (i.s.empty() || !is_register(i.s[0], words)) return false;
        q.to = i.s[0].reg, q.words = static_cast<uint8_t>(words);
        return true;
    }
    bool sets_uniform(int words = 1) {
        if (i.s.empty() || i.s[0].kind != Kind::UREG || i.s[0].reg + words > RZ) return false;
        q.to = i.s[0].reg, q.any = true;
        return true;
    }
    bool take_pair(size_t n, Source& s) {  // 64 bits of the uniform datapath
        if (n >= i.s.size()) return false;
        const Operand& o = i.s[n];
        if (o.inv || o.abs || o.whole_float) return false;
        if (o.kind != Kind::IMM && (o.kind != Kind::CONST || o.reg != RZ) && (o.kind != Kind::UREG || (o.reg != RZ && o.reg + 2 > RZ))) return false;
        s.kind = o.kind, s.neg = o.neg, s.reg = o.reg, s.operand = &o;
        return true;
    }
    // At most one predicate, which the instruction writes.
    bool sets_predicate() {
        for (size_t n = 0; n < i.pd.size(); n++) {
            if (i.pd[n].kind != Kind::PRED) return false;
            if (i.pd[n].reg == PT) continue;
            if (n) return false;
            q.predicate = i.pd[n].reg;
        }
        return true;
    }
    // The incoming carry: at most one predicate that is not constant.
    bool carry(size_t most, int16_t& reg, bool& inverted, bool& is_there) {
        is_there = false;
        for (size_t n = 0; n < std::min(most, i.ps.size()); n++) {
            const Operand& p = i.ps[n];
            if (p.kind != Kind::PRED) return false;
            if (p.reg == PT && p.inv) continue;
            if (is_there) return false;
            is_there = true, reg = p.reg, inverted = p.inv;
        }
        return true;
    }
    QuickRun add() {
        if (i.width == 8 && i.uniform) {
            q.a.kind = q.b.kind = q.c.kind = Kind::NONE;
            Source* const of[] = {&q.a, &q.b, &q.c};
            if (i.s.size() < 2 || i.s.size() > 4 || !i.pd.empty() || i.has(MOD_X) || !sets_uniform(2)) return nullptr;
            for (size_t n = 1; n < i.s.size(); n++)
                if (!take_pair(n, *of[n - 1])) return nullptr;
            return quick_uniform_add_wide;
        }
        if (i.width == 8 || i.s.size() < 2 || i.s.size() > 4) return nullptr;
        Source* const into[] = {&q.a, &q.b, &q.c};
        q.a.kind = q.b.kind = q.c.kind = Kind::IMM;
        for (size_t n = 1; n < i.s.size(); n++)
            if (!take_integer(n, *into[n - 1])) return nullptr;
        if (i.uniform) return !sets_uniform() ? nullptr : i.pd.empty() && !i.has(MOD_X) ? quick_uniform_add : quick_uniform_add_carry;
        if (!sets() || !sets_predicate()) return nullptr;
        if (!i.has(MOD_X)) return q.predicate == PT ? quick_add : quick_add_carry<false>;
        int16_t reg = 0;
        bool inverted = false, is_there = false;
        if (!carry(i.ps.size(), reg, inverted, is_there)) return nullptr;
        q.offset = is_there ? reg : PT, q.how = static_cast<uint8_t>(is_there ? inverted << 1 : 2);  // !PT: none
        return quick_add_carry<true>;
    }

    QuickRun multiply_add() {
        const bool high = i.has(MOD_HI), wide = i.has(MOD_WIDE);
        if (!i.pd.empty() || i.s.size() != 4 || !take_integer(1, q.a) || !take_integer(2, q.b)) return nullptr;
        if (i.uniform) {
            if (high || i.has(MOD_X)) return nullptr;
            if (!wide) return take_integer(3, q.c) && sets_uniform() ? quick_uniform_multiply_add : nullptr;
            if (!take_pair(3, q.c) || !sets_uniform(2)) return nullptr;
            return i.has(MOD_U32) ? quick_uniform_multiply_wide<true> : quick_uniform_multiply_wide<false>;
        }
        if (!take_integer(3, q.c)) return nullptr;
        if (i.has(MOD_X)) {
            if (high || wide || i.ps.size() != 1 || i.ps[0].kind != Kind::PRED || !sets()) return nullptr;
            q.offset = i.ps[0].reg, q.how = i.ps[0].inv;
            return quick_multiply_add_carry;
        }
        if (!high && !wide) return sets() ? quick_multiply_add : nullptr;
        if (!sets(high ? 1 : 2) || !q.c.plain() || (q.c.kind == Kind::IMM && (i.s[3].imm < 0 || i.s[3].imm > FULL))) return nullptr;
        if (q.c.kind == Kind::REG && q.c.reg != RZ && q.c.reg + 1 >= RZ) return nullptr;
        if (high) return i.has(MOD_U32) ? quick_multiply_wide<true, true> : quick_multiply_wide<false, true>;
        return i.has(MOD_U32) ? quick_multiply_wide<true, false> : quick_multiply_wide<false, false>;
    }

    QuickRun extreme() {
        if (i.uniform || i.has(MOD_U64) || i.has(MOD_S64) || !i.pd.empty() || !sets()) return nullptr;
        if (i.s.size() < 3 || i.s.size() > 4 || i.ps.empty()) return nullptr;
        for (const Operand& p : i.ps)
            if (p.kind != Kind::PRED || p.reg != PT || p.inv != i.ps[0].inv) return nullptr;
        if (!take_integer(1, q.a) || !take_integer(2, q.b) || (i.s.size() == 4 && !take_integer(3, q.c))) return nullptr;
        if (i.has(MOD_U32)) return i.ps[0].inv ? quick_extreme<uint32_t, false> : quick_extreme<uint32_t, true>;
        return i.ps[0].inv ? quick_extreme<int32_t, false> : quick_extreme<int32_t, true>;
    }

    QuickRun scaled_add() {
        const bool high = i.has(MOD_HI), wide = high && !i.has(MOD_SX32);
        if (i.s.size() != (wide ? 5 : 4) || i.s.back().kind != Kind::IMM) return nullptr;
        if (!take_plain(1, q.a) || !take_plain(2, q.b) || (wide && !take_plain(3, q.c))) return nullptr;
        if (i.uniform) {
            if (i.has(MOD_X) || !i.pd.empty() || !sets_uniform()) return nullptr;
            q.offset = static_cast<int32_t>(i.s.back().imm & 31);
            return wide ? quick_uniform_scaled_add<LEA_WIDE> : high ? quick_uniform_scaled_add<LEA_SIGN> : quick_uniform_scaled_add<LEA_LOW>;
        }
        if (!sets() || !sets_predicate()) return nullptr;
        int16_t reg = 0;
        bool inverted = false, is_there = false;
        if (i.has(MOD_X) && !carry(1, reg, inverted, is_there)) return nullptr;
        if (is_there) q.how = static_cast<uint8_t>(1 | inverted << 1 | reg << 2);
        q.offset = static_cast<int32_t>(i.s.back().imm & 31);
        return wide ? quick_scaled_add<LEA_WIDE> : high ? quick_scaled_add<LEA_SIGN> : quick_scaled_add<LEA_LOW>;
    }

    QuickRun shift() {
        const bool wide = i.has(MOD_U64) || i.has(MOD_S64), is_left = i.has(MOD_L), is_high = i.has(MOD_HI);
        if (!i.uniform && is_left == is_high) {
            if (i.s.size() != 4 || !take_plain(1, q.a) || !take_plain(2, q.b) || !take_plain(3, q.c) || !sets()) return nullptr;
            const bool is_signed = !is_left && (i.has(MOD_S64) || i.has(MOD_S32));
            q.how = i.has(MOD_W), q.offset = wide ? 63 : 32;
            return is_left ? quick_funnel<SHIFT_LEFT> : is_signed ? quick_funnel<SHIFT_SIGNED> : quick_funnel<SHIFT_RIGHT>;
        }
        if (i.has(MOD_U64) || i.has(MOD_S64) || i.s.size() != 4 || !take_plain(2, q.b)) return nullptr;
        q.how = i.has(MOD_W);
        int form;
        if (i.has(MOD_L) && !i.has(MOD_HI)) form = SHIFT_LEFT;
        else if (!i.has(MOD_L) && i.has(MOD_HI)) form = i.has(MOD_S32) ? SHIFT_SIGNED : SHIFT_UPPER;
        else return nullptr;
        if (!take_plain(form == SHIFT_LEFT ? 1 : 3, q.a)) return nullptr;
        if (i.uniform) {
            if (!sets_uniform()) return nullptr;
            return form == SHIFT_LEFT ? quick_uniform_shift<SHIFT_LEFT> : form == SHIFT_SIGNED ? quick_uniform_shift<SHIFT_SIGNED> : quick_uniform_shift<SHIFT_UPPER>;
        }
        if (!sets()) return nullptr;
        return form == SHIFT_LEFT ? quick_shift<SHIFT_LEFT> : form == SHIFT_SIGNED ? quick_shift<SHIFT_SIGNED> : quick_shift<SHIFT_UPPER>;
    }

    QuickRun logic() {
        if (i.s.size() != 5 || i.s[4].kind != Kind::IMM) return nullptr;
        if (!take_integer(1, q.a) || !take_integer(2, q.b) || !take_integer(3, q.c)) return nullptr;
        q.how = static_cast<uint8_t>(i.s[4].imm);
        if (i.uniform) return i.pd.empty() && !q.a.neg && !q.b.neg && !q.c.neg && sets_uniform() ? quick_uniform_logic : nullptr;
        return sets() && sets_predicate() ? quick_logic : nullptr;
    }

    QuickRun comparison() {
        if (i.s.size() != 2 || i.has(MOD_EX) || i.has(MOD_U64) || i.has(MOD_S64) || i.width == 8) return nullptr;
        for (const Modifier other : {MOD_T, MOD_F, MOD_NUM, MOD_NAN_, MOD_NAN})
            if (i.has(other)) return nullptr;
        q.any = true;
        if (i.op == OP_FSETP)
            for (const auto& [unordered, how] : {std::pair(MOD_GEU, NOT_LESS), std::pair(MOD_GTU, NOT_LESS_EQUAL), std::pair(MOD_LEU, NOT_GREATER), std::pair(MOD_LTU, NOT_GREATER_EQUAL), std::pair(MOD_NEU, NOT_EQUAL), std::pair(MOD_EQU, NOT_UNEQUAL)})
                if (i.has(unordered)) return q.how = static_cast<uint8_t>(how), !i.rounds && take(0, q.a) && take(1, q.b) && !q.a.inv && !q.b.inv ? quick_compare<float> : nullptr;
        q.how = i.has(MOD_LT) ? LESS : i.has(MOD_LE) ? LESS_EQUAL : i.has(MOD_GT) ? GREATER : i.has(MOD_GE) ? GREATER_EQUAL : i.has(MOD_EQ) ? EQUAL : UNEQUAL;
        if (i.op == OP_FSETP) return !i.rounds && take(0, q.a) && take(1, q.b) && !q.a.inv && !q.b.inv ? quick_compare<float> : nullptr;
        if (!take_integer(0, q.a) || !take_integer(1, q.b)) return nullptr;
        return i.has(MOD_U32) ? quick_compare<uint32_t> : quick_compare<int32_t>;
    }

    QuickRun floating() {
        if (!sets() || !take(1, q.a) || q.a.inv || !i.pd.empty()) return nullptr;
        const bool unary = i.op == OP_MUFU;
        if (!unary && (!take(2, q.b) || q.b.inv)) return nullptr;
        if (i.op == OP_FFMA && (!take(3, q.c) || q.c.inv)) return nullptr;
        const bool flushes = i.has(MOD_FTZ), directed = i.has(MOD_RP) || i.has(MOD_RM) || i.has(MOD_RZ) || i.has(MOD_SAT);
        switch (i.op) {
        case OP_FADD: return directed ? nullptr : flushes ? quick_float<OP_FADD, true> : quick_float<OP_FADD, false>;
        case OP_FMUL: return directed ? nullptr : flushes ? quick_float<OP_FMUL, true> : quick_float<OP_FMUL, false>;
        case OP_FFMA: return directed ? nullptr : flushes ? quick_float<OP_FFMA, true> : quick_float<OP_FFMA, false>;
        case OP_FMNMX:
            if (i.rounds || i.has(MOD_NAN) || i.s.size() != 3) return nullptr;
            if (i.ps.size() != 1 || i.ps[0].kind != Kind::PRED || i.ps[0].reg != PT) return nullptr;
            return i.ps[0].inv ? quick_minmax<false> : quick_minmax<true>;
        case OP_F2FP:
            if (i.rounds || i.has(MOD_RELU) || i.has(MOD_E4M3) || i.has(MOD_E5M2) || i.s.size() != 3) return nullptr;
            return i.has(MOD_BF16) ? quick_pack<true> : quick_pack<false>;
        default:
            if (i.has(MOD_RCP64H) || i.has(MOD_RSQ64H)) return nullptr;
            return i.has(MOD_EX2) ? quick_power : i.has(MOD_RCP) ? quick_reciprocal : nullptr;
        }
    }

    QuickRun widening() {  // HADD2.F32 R, -RZ, R.H0_H0
        if (!i.has(MOD_F32) || i.has(MOD_BF16) || i.has(MOD_BF16_V2) || i.has(MOD_SAT) || i.has(MOD_RELU) || i.s.size() != 3 || !sets()) return nullptr;
        const Operand &zero = i.s[1], &half = i.s[2];
        if (zero.kind != Kind::REG || zero.reg != RZ || !zero.neg || zero.whole_float) return nullptr;
        if (!is_register(half) || half.neg || half.abs || half.inv || half.whole_float || half.half > 2) return nullptr;
        q.b.reg = half.reg, q.how = half.half == 2 ? 16 : 0;
        return quick_widen;
    }

    // [register · scale + uniform register + offset]
    bool address(const Operand& o, bool global) {
        if (o.kind != Kind::ADDR || o.imm < INT32_MIN || o.imm > INT32_MAX) return false;
        q.offset = static_cast<int32_t>(o.imm), q.a.reg = o.reg;
        if (o.ureg >= 0) q.b.kind = Kind::UREG, q.b.reg = o.ureg;
        if (!global) return q.how = o.scale, true;
        if (o.scale != 1) return false;
        const bool pair = o.reg != RZ && o.half != 1, uniform_pair = o.uwide || o.wide || o.reg == RZ || o.half == 1;
        q.how = static_cast<uint8_t>(pair | uniform_pair << 1);
        return !o.half || o.half == 1;
    }

    template <bool LOADS>
    QuickRun access(bool global) {
        if (i.s.size() != 2 || i.polls || !i.ps.empty() || !i.pd.empty() || i.has(MOD_S16) || i.has(MOD_S8)) return nullptr;
        const Operand &value = i.s[LOADS ? 0 : 1], &where = i.s[LOADS ? 1 : 0];
        const int words = std::max(1, i.width / 4);
        const bool zeros = !LOADS && value.kind == Kind::REG && value.reg == RZ && words < 4;
        if ((!zeros && !is_register(value, words)) || !address(where, global)) return nullptr;
        q.to = value.reg;
        switch (i.width) {
        case 2: return global ? quick_global<2, LOADS> : quick_shared<2, LOADS>;
        case 4: return global ? quick_global<4, LOADS> : quick_shared<4, LOADS>;
        case 8: return global ? quick_global<8, LOADS> : quick_shared<8, LOADS>;
        case 16: return global ? quick_global<16, LOADS> : quick_shared<16, LOADS>;
        default: return nullptr;
        }
    }

    QuickRun reduction() {
        if (i.width != 4 || !i.has(MOD_ADD) || !i.has(MOD_F32) || i.s.size() != 2 || !i.ps.empty() || !i.pd.empty()) return nullptr;
        if (!is_register(i.s[1]) || !address(i.s[0], true)) return nullptr;
        q.to = i.s[1].reg;
        return i.has(MOD_FTZ) ? quick_reduce<true> : quick_reduce<false>;
    }

    QuickRun copy() {
        if (i.width != 16 || i.s.size() != 2 || i.ps.size() > 1 || !i.pd.empty() || !address(i.s[1], true)) return nullptr;
        q.c.reg = q.a.reg, q.c.value = static_cast<uint32_t>(q.offset), q.to = q.how;
        q.predicate = q.b.kind == Kind::UREG ? q.b.reg : -1;
        q.b = Source();
        return address(i.s[0], false) ? quick_copy : nullptr;
    }

    QuickRun matrices() {
        const int count = std::max(1, std::min(4, i.count));
        if (i.s.size() != 2 || !is_register(i.s[0], count) || !address(i.s[1], false)) return nullptr;
        q.to = i.s[0].reg;
        switch (count) {
        case 1: return i.transposes ? quick_matrices<1, true> : quick_matrices<1, false>;
        case 2: return i.transposes ? quick_matrices<2, true> : quick_matrices<2, false>;
        case 4: return i.transposes ? quick_matrices<4, true> : quick_matrices<4, false>;
        default: return nullptr;
        }
    }

    QuickRun shuffle() {
        const bool is_index = i.has(MOD_IDX);
        if (!(is_index || i.has(MOD_BFLY)) || i.s.size() != 4 || !sets() || !sets_predicate() || q.predicate != PT || !is_register(i.s[1])) return nullptr;
        const Operand &by = i.s[2], &clamp = i.s[3];
        if (clamp.kind != Kind::IMM || clamp.imm != 31) return nullptr;
        if (is_index) {
            q.a.reg = i.s[1].reg, q.words = 0;
            return take_plain(2, q.b) && q.b.kind != Kind::UREG ? quick_index : nullptr;
        }
        if (by.kind != Kind::IMM) return nullptr;
        q.a.reg = i.s[1].reg, q.offset = static_cast<int32_t>(by.imm & 31), q.words = 0;
        return quick_butterfly;
    }

    QuickRun product() {
#ifdef QUICK_MULTIPLY
        if (i.count != 16816 || !starts(i.name, "HMMA") || i.has(MOD_TF32) || !i.has(MOD_F32) || i.s.size() != 4) return nullptr;
        const Operand &b = i.s[2], &c = i.s[3];
        if (!sets(4) || !is_register(i.s[1], 4) || b.kind != Kind::REG || c.kind != Kind::REG) return nullptr;
        if ((b.reg != RZ && b.reg + 2 > RZ) || (c.reg != RZ && c.reg + 4 > RZ)) return nullptr;
        for (const Operand& o : i.s)
            if (o.neg || o.abs || o.inv) return nullptr;
        q.a.reg = i.s[1].reg, q.b.reg = b.reg, q.c.reg = c.reg, q.words = 0;
        return i.has(MOD_BF16) ? quick_multiply<true> : quick_multiply<false>;
#else
        return nullptr;
#endif
    }

    QuickRun permutation() {
        if (i.s.size() != 4 || i.s[2].kind != Kind::IMM || !sets() || !take_plain(1, q.a) || !take_plain(2, q.b) || !take_plain(3, q.c)) return nullptr;
        return quick_permute;
    }

    QuickRun selection() {
        if (i.width == 8 || i.s.size() < 3 || i.ps.empty()) return nullptr;
        if (i.uniform) return i.op == OP_SEL && take_integer(1, q.a) && take_integer(2, q.b) && sets_uniform() ? quick_uniform_select : nullptr;
        if (!sets()) return nullptr;
        q.how = i.op == OP_FSEL;
        if (q.how) return take(1, q.a) && take(2, q.b) && !q.a.inv && !q.b.inv ? quick_select : nullptr;
        return take_integer(1, q.a) && take_integer(2, q.b) ? quick_select : nullptr;
    }

    QuickRun predicates() {
        if (i.raw.size() < 6) return nullptr;
        q.how = static_cast<uint8_t>(i.raw.size() > 6 ? 2 : 1), q.any = true;
        for (size_t n = 0; n < 5; n++)
            if (i.raw[n].kind != Kind::PRED && i.raw[n].kind != Kind::UPRED) return nullptr;
        return i.raw[5].kind == Kind::IMM && i.raw.back().kind == Kind::IMM ? quick_predicates : nullptr;
    }

    QuickRun special() {
        if (i.s.size() != 2 || i.s[1].kind != Kind::SPECIAL || i.s[1].imm < 0 || i.s[1].imm >= SR_OTHER) return nullptr;
        const int which = static_cast<int>(i.s[1].imm);
        const bool of_cta = which >= SR_CTAX && which <= SR_CTAZ;
        q.how = static_cast<uint8_t>(which);
        if (i.s[0].kind == Kind::UREG) return of_cta && sets_uniform() ? quick_uniform_special : nullptr;
        return (of_cta || which == SR_LANE || which == SR_TIDX) && sets() ? quick_special : nullptr;
    }

    QuickRun constants() {
        if (i.s.size() != 2 || !i.pd.empty() || i.width < 4 || i.width > 16 || i.s[1].kind != Kind::CONST || i.s[1].reg != RZ) return nullptr;
        const int words = i.width / 4;
        q.a.operand = &i.s[1], q.how = static_cast<uint8_t>(words);
        if (i.s[0].kind == Kind::UREG) return sets_uniform(words) ? quick_uniform_constants : nullptr;
        return sets(words) ? quick_constants : nullptr;
    }

    QuickRun find() {
        if (!i.unknown.empty()) return nullptr;
        if (i.op == OP_HGMMA || i.op == OP_WARPGROUP || i.op == OP_LDGDEPBAR || i.op == OP_DEPBAR || i.op == OP_UTMACMDFLUSH) return quick_asynchronous;
        if (!i.straight) return nullptr;
        switch (i.op) {
        case OP_MOV:
            if (i.width == 8 || !take_integer(1, q.a)) return nullptr;
            if (i.uniform) return q.a.plain() && q.a.kind != Kind::REG && sets_uniform() ? quick_uniform_move : nullptr;
            return sets() ? quick_move : nullptr;
        case OP_R2UR:
            return i.pd.empty() && take_plain(1, q.a) && sets_uniform() ? quick_uniform_move : nullptr;
        case OP_CS2R:
            q.how = i.count != 32;
            return !i.uniform && i.s.size() > 1 && i.s[1].kind == Kind::REG && sets(q.how ? 2 : 1) ? quick_zeros : nullptr;
        case OP_IADD3: return add();
        case OP_IMAD: return multiply_add();
        case OP_LDC: return constants();
        case OP_S2R: return special();
        case OP_IABS: return !i.uniform && sets() && take_plain(1, q.a) ? quick_absolute : nullptr;
        case OP_LEA: return scaled_add();
        case OP_IMNMX: case OP_IMNMX3: return extreme();
        case OP_SHF: return shift();
        case OP_LOP3: return logic();
        case OP_PRMT: return i.uniform ? nullptr : permutation();
        case OP_PLOP3: return predicates();
        case OP_SEL: case OP_FSEL: return selection();
        case OP_ISETP: case OP_FSETP: return comparison();
        case OP_FADD: case OP_FMUL: case OP_FFMA: case OP_FMNMX: case OP_F2FP: case OP_MUFU: return i.uniform ? nullptr : floating();
        case OP_HADD2: return widening();
        case OP_HMMA: return product();
        case OP_LDS: return access<true>(false);
        case OP_STS: return access<false>(false);
        case OP_LDG: return access<true>(true);
        case OP_STG: return access<false>(true);
        case OP_RED: return reduction();
        case OP_LDGSTS: return copy();
        case OP_LDSM: return matrices();
        case OP_SHFL: return shuffle();
        default: return nullptr;
        }
    }
};

// Number of registers that the code can name: one more than the last register of any operand's vector.
int registers_of(const std::vector<Instruction>& code) {
    int registers = 0;
    for (const Instruction& i : code) {
        const int vector = i.op == OP_HGMMA ? std::max(8, i.count / 2) : 8;
        for (const Operand& o : i.raw)
            if ((o.kind == Kind::REG || o.kind == Kind::ADDR || o.kind == Kind::CONST) && o.reg < RZ) registers = std::max(registers, o.reg + vector);
    }
    return std::min<int>(registers, RZ);
}

std::vector<Quick> bound(const std::vector<Instruction>& code, std::deque<Lanes>& constants, std::vector<GroupForm>& groups) {
    std::vector<Quick> quick;
    quick.reserve(code.size());
    for (const Instruction& i : code) {
        Binder binder(i);
        binder.q.run = binder.find();
        if (i.op == OP_HGMMA) {
            binder.q.offset = static_cast<int32_t>(groups.size());
            groups.emplace_back(i);
        }
        for (Source* s : {&binder.q.a, &binder.q.b, &binder.q.c}) {
            s->as_it_is = s->kind == Kind::REG && s->plain();
            if (s->kind != Kind::IMM || !s->plain()) continue;
            constants.emplace_back();
            s->spread = spread_word(s->value, constants.back());
        }
        quick.push_back(binder.q);
    }
    return quick;
}
