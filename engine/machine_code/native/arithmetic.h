// Integers and predicates. Included by emulator.cpp.

template <typename F>
Lanes each(F f) {
    Lanes out;
    for (int l = 0; l < 32; l++) out[l] = f(l);
    return out;
}

template <typename F>
uint32_t mask_of(F f) {
    uint32_t mask = 0;
    for (int l = 0; l < 32; l++) mask |= static_cast<uint32_t>(f(l) ? 1 : 0) << l;
    return mask;
}

// Extends loaded 8- or 16-bit values to 32 bits, with the sign for signed loads.
inline Lanes extended(const Instruction& i, Lanes v) {
    if (i.has(MOD_S16)) for (auto& x : v.v) x = static_cast<uint32_t>(static_cast<int16_t>(x));
    if (i.has(MOD_S8)) for (auto& x : v.v) x = static_cast<uint32_t>(static_cast<int8_t>(x));
    return v;
}

inline uint32_t lut3(uint32_t x, uint32_t y, uint32_t z, uint32_t table) {
    uint32_t value = 0;
    for (uint32_t row = 0; row < 8; row++)
        if (table >> row & 1) value |= (row & 4 ? x : ~x) & (row & 2 ? y : ~y) & (row & 1 ? z : ~z);
    return value;
}

inline uint32_t join(const Instruction& i, uint32_t first, uint32_t other) {
    if (i.has(MOD_OR)) return first | other;
    if (i.has(MOD_XOR)) return first ^ other;
    return first & other;
}

template <typename T>
uint32_t compare(const Instruction& i, const T& x, const T& y) {
    // Unordered forms (LTU …) are true if either side is NaN.
    auto is = [&](Modifier plain, Modifier unordered) { return i.has(plain) || i.has(unordered); };
    const bool unordered = i.has(MOD_LTU) || i.has(MOD_LEU) || i.has(MOD_GTU) || i.has(MOD_GEU) || i.has(MOD_EQU) || i.has(MOD_NEU);
    if (i.has(MOD_T)) return FULL;
    if (i.has(MOD_F)) return 0;
    return mask_of([&](int l) {
        const auto a = x[l], b = y[l];
        const bool nan = a != a || b != b;
        if (i.has(MOD_NUM)) return !nan;
        if (i.has(MOD_NAN_) || i.has(MOD_NAN)) return nan;
        if (nan) return unordered;
        if (is(MOD_LT, MOD_LTU)) return a < b;
        if (is(MOD_LE, MOD_LEU)) return a <= b;
        if (is(MOD_GT, MOD_GTU)) return a > b;
        if (is(MOD_GE, MOD_GEU)) return a >= b;
        if (is(MOD_EQ, MOD_EQU)) return a == b;
        return a != b;
    });
}

inline const Operand& at(const std::vector<Operand>& list, size_t n, const Instruction& i) {
    if (n >= list.size()) fail(i, "has an operand form that is not supported here");
    return list[n];
}

void Warp::arithmetic(const Instruction& i) {
    Lanes ta, tb, tc;
    const std::vector<Operand>& s = i.s;
    auto finish_compare = [&](uint32_t result) {
        const uint32_t other = i.ps.empty() ? FULL : predicate(i.ps[0]);
        if (!i.pd.empty()) write_predicate(i.pd[0], join(i, result, other));
        if (i.pd.size() > 1) write_predicate(i.pd[1], join(i, ~result, other));
    };
    auto arg = [&](size_t n, Lanes& t) -> const Lanes& { return integer(at(s, n, i), t); };
    switch (i.op) {
    case OP_MOV:
        if (i.width == 8) {
            Wide v;
            read_wide(at(s, 1, i), v);
            return write_wide(s[0], v);
        }
        return write(at(s, 0, i), arg(1, ta));
    case OP_R2UR: case OP_LDC: {
        const int words = i.op == OP_LDC ? std::max(1, i.width / 4) : 1;
        for (int w = 0; w < words; w++) {
            if (i.op == OP_LDC && i.width < 4) {
                const Lanes& v = read(at(s, 1, i), ta);
                const int shift = 8 * static_cast<int>(s[1].imm & 3);
                write(s[0], each([&](int l) { return v[l] >> shift & (i.width == 1 ? 0xffu : 0xffffu); }));
            } else {
                write(at(s, 0, i), read(at(s, 1, i), ta, w), w);
            }
        }
        if (i.op == OP_R2UR && !i.pd.empty() && on) {  // predicate: the lanes that hold another value
            const Lanes& v = read(at(s, 1, i), ta);
            const uint32_t taken = v[__builtin_ctz(on)];
            const uint32_t others = mask_of([&](int l) { return v[l] != taken; });
            write_predicate(i.pd[0], i.has(MOD_OR) ? others | predicate(i.pd[0]) : others);
        }
        return;
    }
    case OP_S2R: {
        const auto& r = cta.request;
        const uint32_t b0 = r.block[0], b1 = r.block[1];
        const int which = static_cast<int>(at(s, 1, i).imm);
        if (s[1].kind != Kind::SPECIAL) return write(s[0], Lanes{});
#if EXECUTES
        if (which == SR_CLOCKLO || which == SR_CLOCKHI || which == SR_CGA || which == SR_OTHER) {
            const uint32_t value = special(i, which);
            return write(s[0], each([&](int) { return value; }));
        }
#endif
        if (which >= SR_CTAX && which <= SR_CTAZ) marks[1 + which - SR_CTAX] = FULL;
        return write(s[0], each([&](int l) -> uint32_t {
            const uint32_t thread = static_cast<uint32_t>(number * 32 + l);
            switch (which) {
            case SR_TIDX: return thread % b0;
            case SR_TIDY: return thread / b0 % b1;
            case SR_TIDZ: return thread / (b0 * b1);
            case SR_TID: return thread % b0 | (thread / b0 % b1) << 16 | thread / (b0 * b1) << 26;
            case SR_CTAX: case SR_CTAY: case SR_CTAZ: return r.cta[which - SR_CTAX];
            case SR_LANE: return static_cast<uint32_t>(l);
            case SR_VIRT: return static_cast<uint32_t>(number);
            case SR_NTID: return b0 * b1 * r.block[2];
            case SR_LT: return (1u << l) - 1;
            case SR_LE: return (2u << l) - 1;
            case SR_EQ: return 1u << l;
            case SR_GE: return ~((1u << l) - 1);
            case SR_GT: return ~((2u << l) - 1);
            case SR_SMEMSZ: return r.smem_bytes;
            default: return 0;
            }
        }));
    }
    case OP_CS2R:
#if EXECUTES
        if (at(s, 1, i).kind == Kind::SPECIAL) {
            const uint32_t low = special(i, static_cast<int>(s[1].imm)), high = special(i, SR_CLOCKHI);
            write(at(s, 0, i), each([&](int) { return low; }));
            if (i.count != 32) write(s[0], each([&](int) { return high; }), 1);
            return;
        }
#endif
        write(at(s, 0, i), Lanes{});
        if (i.count != 32) write(s[0], Lanes{}, 1);
        return;
#if EXECUTES
    case OP_QSPC: {  // the address space of a generic address
        Wide where;
        read_wide(at(s, s.size() - 1, i), where);
        const bool asks_shared = i.has(MOD_S), asks_local = i.has(MOD_L);
        return write_predicate(at(i.pd, 0, i), mask_of([&](int l) {
            const bool is_shared = where[l] >> 32 == SHARED_HIGH, is_local = where[l] >> 32 == LOCAL_HIGH;
            return asks_shared ? is_shared : asks_local ? is_local : !is_shared && !is_local;
        }));
    }
#endif
    case OP_LEPC: {
        const int64_t address = i.target >= 0 ? cta.code[static_cast<size_t>(i.target)].address : i.address + 16;
        write(at(s, 0, i), each([&](int) { return static_cast<uint32_t>(address); }));
        return write(s[0], Lanes{}, 1);
    }
    case OP_IADD3: {
        if (i.width == 8) {  // IADD.64
            Wide total{}, v;
            for (size_t n = 1; n < s.size(); n++) {
                read_wide(s[n], v);
                for (int l = 0; l < 32; l++) total[l] += v[l];
            }
            return write_wide(at(s, 0, i), total);
        }
        Wide total{};
        for (size_t n = 1; n < s.size(); n++) {
            const Lanes& v = read(s[n], ta);
            for (int l = 0; l < 32; l++) {
                // With an incoming carry, a minus is the one's complement.
                if (s[n].inv) total[l] += ~v[l];
                else if (s[n].neg) total[l] += i.has(MOD_X) ? static_cast<uint64_t>(~v[l]) : (uint64_t{1} << 32) - v[l];
                else total[l] += v[l];
            }
        }
        if (i.has(MOD_X))
            for (const Operand& p : i.ps) {
                const uint32_t carry = predicate(p);
                for (int l = 0; l < 32; l++) total[l] += carry >> l & 1;
            }
        for (size_t n = 0; n < i.pd.size(); n++)
            write_predicate(i.pd[n], mask_of([&](int l) { return total[l] >> 32 > n; }));
        return write(at(s, 0, i), each([&](int l) { return static_cast<uint32_t>(total[l]); }));
    }
    case OP_IMAD: {
        const Lanes &x = arg(1, ta), &y = arg(2, tb);
        const bool is_unsigned = i.has(MOD_U32);
        const uint32_t carry = i.has(MOD_X) && !i.ps.empty() ? predicate(i.ps[0]) : 0;
        auto product = [&](int l) -> uint64_t {
            if (is_unsigned) return static_cast<uint64_t>(x[l]) * y[l];
            return static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(x[l])) * static_cast<int32_t>(y[l]));
        };
        if (i.has(MOD_WIDE) || i.has(MOD_HI)) {
            // WIDE and HI add a register pair to the 64-bit product; HI writes only the upper word of the sum.
            Wide z, total;
            read_wide(at(s, 3, i), z);
            uint32_t out = 0;
            for (int l = 0; l < 32; l++) {
                const uint64_t p = product(l);
                total[l] = p + z[l] + (carry >> l & 1);
                out |= static_cast<uint32_t>(total[l] < p) << l;
            }
            if (!i.pd.empty()) write_predicate(i.pd[0], out);
            if (i.has(MOD_WIDE)) return write_wide(s[0], total);
            return write(s[0], each([&](int l) { return static_cast<uint32_t>(total[l] >> 32); }));
        }
        const Lanes& z = arg(3, tc);
        if (!i.pd.empty())
            write_predicate(i.pd[0], mask_of([&](int l) { return (static_cast<uint64_t>(x[l] * y[l]) + z[l] + (carry >> l & 1)) >> 32; }));
        return write(s[0], each([&](int l) { return x[l] * y[l] + z[l] + (carry >> l & 1); }));
    }
    case OP_LEA: {
        const uint32_t shift = static_cast<uint32_t>(at(s, s.size() - 1, i).imm) & 31;
        const Lanes &x = read(at(s, 1, i), ta), &y = read(at(s, 2, i), tb);
        const bool high = i.has(MOD_HI), wide = high && !i.has(MOD_SX32);
        const Lanes* z = wide ? &read(at(s, 3, i), tc) : nullptr;
        const uint32_t carry = i.has(MOD_X) && !i.ps.empty() ? predicate(i.ps[0]) : 0;
        Wide total;
        for (int l = 0; l < 32; l++) {
            uint32_t scaled;
            if (!high) scaled = x[l] << shift;
            else if (wide) scaled = static_cast<uint32_t>((x[l] | static_cast<uint64_t>((*z)[l]) << 32) << shift >> 32);
            else scaled = static_cast<uint32_t>(static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(x[l]))) << shift >> 32);
            if (s[1].neg) scaled = i.has(MOD_X) ? ~scaled : 0u - scaled;
            uint64_t addend = y[l];
            if (s[2].neg) addend = i.has(MOD_X) ? static_cast<uint64_t>(~y[l]) : (uint64_t{1} << 32) - y[l];
            if (s[2].inv) addend = ~y[l];
            total[l] = static_cast<uint64_t>(scaled) + addend + (carry >> l & 1);
        }
        if (!i.pd.empty()) write_predicate(i.pd[0], mask_of([&](int l) { return total[l] >> 32; }));
        return write(s[0], each([&](int l) { return static_cast<uint32_t>(total[l]); }));
    }
    case OP_ISCADD: {
        const Lanes &x = arg(1, ta), &y = arg(2, tb);
        const int shift = static_cast<int>(at(s, 3, i).imm) & 31;
        return write(s[0], each([&](int l) { return (x[l] << shift) + y[l]; }));
    }
    case OP_SHF: {
        const Lanes &low = arg(1, ta), &by = arg(2, tb), &high = arg(3, tc);
        const bool wide = i.has(MOD_U64) || i.has(MOD_S64), wraps = i.has(MOD_W);
        return write(s[0], each([&](int l) -> uint32_t {
            const uint32_t most = wide ? 63 : 32;
            const uint32_t n = wraps ? by[l] & (wide ? 63 : 31) : std::min(by[l], most);
            const uint64_t both = low[l] | static_cast<uint64_t>(high[l]) << 32;
            if (i.has(MOD_L)) return static_cast<uint32_t>(i.has(MOD_HI) ? both << n >> 32 : n > 31 ? 0 : low[l] << n);
            if (!i.has(MOD_HI)) {
                const bool is_signed = i.has(MOD_S64) || i.has(MOD_S32);
                return static_cast<uint32_t>(is_signed ? static_cast<uint64_t>(static_cast<int64_t>(both) >> n) : both >> n);
            }
            if (i.has(MOD_S32) || i.has(MOD_S64)) return static_cast<uint32_t>(static_cast<int32_t>(high[l]) >> std::min(n, 31u));
            return n > 31 ? 0 : high[l] >> n;
        }));
    }
    case OP_SHL: case OP_SHR: {
        const Lanes &x = arg(1, ta), &by = arg(2, tb);
        return write(s[0], each([&](int l) -> uint32_t {
            const uint32_t n = i.has(MOD_W) ? by[l] & 31 : by[l];
            if (i.op == OP_SHL) return n > 31 ? 0 : x[l] << n;
            if (i.has(MOD_U32)) return n > 31 ? 0 : x[l] >> n;
            return static_cast<uint32_t>(static_cast<int32_t>(x[l]) >> std::min(n, 31u));
        }));
    }
    case OP_LOP3: {
        const Lanes &x = arg(1, ta), &y = arg(2, tb), &z = arg(3, tc);
        const uint32_t table = static_cast<uint32_t>(at(s, 4, i).imm);
        const Lanes v = each([&](int l) { return lut3(x[l], y[l], z[l], table); });
        if (!i.pd.empty()) {
            const uint32_t nonzero = mask_of([&](int l) { return v[l] != 0; });
            const uint32_t other = i.ps.empty() ? 0 : predicate(i.ps[0]);
            write_predicate(i.pd[0], i.has(MOD_PAND) ? nonzero & other : nonzero | other);
        }
        return write(s[0], v);
    }
    case OP_LOP: {
        const Lanes &x = arg(1, ta), &y = arg(2, tb);
        return write(s[0], each([&](int l) { return join(i, x[l], y[l]); }));
    }
    case OP_PLOP3: {
        if (i.raw.size() < 6) {  // PSETP.AND.AND P0, PT, P1, P2, P3
            const uint32_t v = predicate(at(i.raw, 2, i)) & predicate(at(i.raw, 3, i));
            return write_predicate(i.raw[0], v);
        }
        const uint32_t x = predicate(i.raw[2]), y = predicate(i.raw[3]), z = predicate(i.raw[4]);
        write_predicate(i.raw[0], lut3(x, y, z, static_cast<uint32_t>(i.raw[5].imm)));
        if (i.raw.size() > 6) write_predicate(i.raw[1], lut3(x, y, z, static_cast<uint32_t>(i.raw[6].imm)));
        return;
    }
    case OP_ISETP: {
        if (i.has(MOD_U64) || i.has(MOD_S64) || i.width == 8) {
            Wide x, y;
            read_wide(at(s, 0, i), x), read_wide(at(s, 1, i), y);
            if (i.has(MOD_U64)) return finish_compare(compare(i, x.v, y.v));
            int64_t a[32], b[32];
            for (int l = 0; l < 32; l++) a[l] = static_cast<int64_t>(x[l]), b[l] = static_cast<int64_t>(y[l]);
            return finish_compare(compare(i, a, b));
        }
        const Lanes &x = arg(0, ta), &y = arg(1, tb);
        uint32_t result;
        if (i.has(MOD_U32)) {
            result = compare(i, x, y);
        } else {
            int32_t a[32], b[32];
            for (int l = 0; l < 32; l++) a[l] = static_cast<int32_t>(x[l]), b[l] = static_cast<int32_t>(y[l]);
            result = compare(i, a, b);
        }
        if (i.has(MOD_EX)) {  // compares the upper words; the lower ones decide if they are equal
            const uint32_t equal = mask_of([&](int l) { return x[l] == y[l]; });
            result = (result & ~equal) | (predicate(at(i.ps, i.ps.size() - 1, i)) & equal);
        }
        return finish_compare(result);
    }
    case OP_SEL: case OP_FSEL: {
        if (i.width == 8) {
            Wide x, y;
            read_wide(at(s, 1, i), x), read_wide(at(s, 2, i), y);
            const uint32_t first = predicate(at(i.ps, 0, i));
            for (int l = 0; l < 32; l++) x[l] = first >> l & 1 ? x[l] : y[l];
            return write_wide(s[0], x);
        }
        const bool is_float = i.op == OP_FSEL;
        const Lanes &x = is_float ? floating(at(s, 1, i), ta) : arg(1, ta);
        const Lanes &y = is_float ? floating(at(s, 2, i), tb) : arg(2, tb);
        const uint32_t which = predicate(at(i.ps, 0, i));
        return write(s[0], each([&](int l) { return which >> l & 1 ? x[l] : y[l]; }));
    }
    case OP_IMNMX: case OP_IMNMX3: case OP_VIADDMNMX: {
        if (i.has(MOD_U64) || i.has(MOD_S64)) {
            Wide x, y;
            read_wide(at(s, 1, i), x), read_wide(at(s, 2, i), y);
            const uint32_t smaller = predicate(at(i.ps, 0, i));
            for (int l = 0; l < 32; l++) {
                const bool less = i.has(MOD_U64) ? x[l] < y[l] : static_cast<int64_t>(x[l]) < static_cast<int64_t>(y[l]);
                x[l] = less == static_cast<bool>(smaller >> l & 1) ? x[l] : y[l];
            }
            return write_wide(s[0], x);
        }
        Lanes value = arg(1, ta);
        const bool is_unsigned = i.has(MOD_U32);
        const uint32_t least = i.ps.empty() ? FULL : predicate(i.ps[0]);
        for (size_t n = 2; n < s.size(); n++) {
            const Lanes& y = arg(n, tb);
            const bool adds = i.op == OP_VIADDMNMX && n == 2;
            for (int l = 0; l < 32; l++) {
                if (adds) { value[l] += y[l]; continue; }
                const bool less = is_unsigned ? value[l] < y[l] : static_cast<int32_t>(value[l]) < static_cast<int32_t>(y[l]);
                value[l] = less == static_cast<bool>(least >> l & 1) ? value[l] : y[l];
            }
        }
        return write(s[0], value);
    }
    case OP_RPCMOV: {  // a register pair in which code keeps values during a call
        const auto part = [&](const Operand& o) -> Lanes* {
            return o.text == "Rpc.LO" ? &rpc[0] : o.text == "Rpc.HI" ? &rpc[1] : nullptr;
        };
        Lanes *to = part(at(i.raw, 0, i)), *from = part(at(i.raw, 1, i));
        if (!to == !from) fail(i, "has an operand form that is not supported here");
        if (!to) return write(i.raw[0], *from);
        const Lanes& value = read(i.raw[1], ta);
        for (int l = 0; l < 32; l++) (*to)[l] = on >> l & 1 ? value[l] : (*to)[l];
        return;
    }
    case OP_VABSDIFF: {
        const Lanes &x = arg(1, ta), &y = arg(2, tb);
        const Lanes* z = s.size() > 3 ? &arg(3, tc) : nullptr;
        return write(s[0], each([&](int l) {
            const int64_t a = i.has(MOD_U32) ? static_cast<int64_t>(x[l]) : static_cast<int32_t>(x[l]);
            const int64_t b = i.has(MOD_U32) ? static_cast<int64_t>(y[l]) : static_cast<int32_t>(y[l]);
            return static_cast<uint32_t>(a < b ? b - a : a - b) + (z ? (*z)[l] : 0);
        }));
    }
    case OP_IABS: {
        const Lanes& x = arg(1, ta);
        return write(s[0], each([&](int l) { return static_cast<int32_t>(x[l]) < 0 ? 0u - x[l] : x[l]; }));
    }
    case OP_PRMT: {
        const Lanes &x = arg(1, ta), &selector = arg(2, tb), &y = arg(3, tc);
        return write(s[0], each([&](int l) {
            const uint64_t source = x[l] | static_cast<uint64_t>(y[l]) << 32;
            uint32_t value = 0;
            for (int position = 0; position < 4; position++) {
                const uint32_t choice = selector[l] >> 4 * position & 15;
                uint32_t byte = static_cast<uint32_t>(source >> (choice & 7) * 8) & 255;
                if (choice & 8) byte = byte & 128 ? 255 : 0;
                value |= byte << 8 * position;
            }
            return value;
        }));
    }
    case OP_POPC: case OP_BREV: case OP_FLO: {
        const Lanes& x = arg(1, ta);
        return write(s[0], each([&](int l) -> uint32_t {
            uint32_t v = x[l];
            if (i.op == OP_POPC) return static_cast<uint32_t>(__builtin_popcount(v));
            if (i.op == OP_BREV) {
                uint32_t out = 0;
                for (int b = 0; b < 32; b++) out |= (v >> b & 1) << (31 - b);
                return out;
            }
            if (!i.has(MOD_U32) && static_cast<int32_t>(v) < 0) v = ~v;
            if (v == 0) return FULL;
            const uint32_t leading = static_cast<uint32_t>(__builtin_clz(v));
            return i.has(MOD_SH) ? leading : 31 - leading;
        }));
    }
    case OP_SGXT: case OP_BMSK: {
        const Lanes &x = arg(1, ta), &y = arg(2, tb);
        return write(s[0], each([&](int l) -> uint32_t {
            if (i.op == OP_BMSK) {
                const uint32_t from = i.has(MOD_W) ? x[l] & 31 : x[l], bits = i.has(MOD_W) ? y[l] & 31 : y[l];
                const uint32_t mask = bits > 31 ? FULL : (1u << bits) - 1;
                return from > 31 ? 0 : mask << from;
            }
            const uint32_t bits = i.has(MOD_W) ? y[l] & 31 : std::min(y[l], 32u);
            if (bits == 0) return 0;
            if (bits == 32) return x[l];
            const uint32_t kept = x[l] & ((1u << bits) - 1);
            return !i.has(MOD_U32) && kept >> (bits - 1) ? kept | ~((1u << bits) - 1) : kept;
        }));
    }
    case OP_P2R: {
        const Lanes& keep = s.size() > 2 ? arg(2, ta) : ta;
        const uint32_t mask = static_cast<uint32_t>(at(s, s.size() - 1, i).imm);
        const uint32_t* from = i.uniform ? UP : P;
        for (int p = 0; p < 7; p++) marks |= i.uniform ? upmarks[p] : pmarks[p];
        return write(s[0], each([&](int l) {
            uint32_t value = 0;
            for (int p = 0; p < 7; p++) value |= (from[p] >> l & 1) << p;
            return (keep[l] & ~mask) | (value & mask);
        }));
    }
    case OP_R2P: {
        const Lanes& x = arg(1, ta);
        const uint32_t mask = static_cast<uint32_t>(at(s, s.size() - 1, i).imm);
        const int shift = s[1].half >= 8 ? 8 * (s[1].half - 8) : 0;
        Operand p;
        p.kind = i.uniform ? Kind::UPRED : Kind::PRED;
        for (p.reg = 0; p.reg < 7; p.reg++)
            if (mask >> p.reg & 1) write_predicate(p, mask_of([&](int l) { return x[l] >> (shift + p.reg) & 1; }));
        return;
    }
    case OP_VOTE: {
        const uint32_t ballot = predicate(at(i.raw, i.raw.size() - 1, i)) & on;
        const bool to_register = i.raw[0].kind == Kind::REG || i.raw[0].kind == Kind::UREG;
        marks = spread(marks, on);
        if (to_register) write(i.raw[0], each([&](int) { return ballot; }));
        if (i.raw.size() > (to_register ? 2u : 1u)) {
            const bool result = i.has(MOD_ALL) ? ballot == on : i.has(MOD_EQ) ? ballot == on || ballot == 0 : ballot != 0;
            write_predicate(i.raw[to_register ? 1 : 0], result ? FULL : 0);
        }
        return;
    }
    case OP_MATCH: {
        const Lanes& x = arg(1, ta);
        marks = spread(marks, on);
        const Lanes v = each([&](int l) { return mask_of([&](int k) { return on >> k & 1 && x[k] == x[l]; }); });
        if (!i.pd.empty()) write_predicate(i.pd[0], mask_of([&](int l) { return v[l] == on; }));
        return write(s[0], i.has(MOD_ALL) ? each([&](int l) { return v[l] == on ? on : 0; }) : v);
    }
    case OP_REDUX: {
        const Lanes& x = arg(1, ta);
        marks = spread(marks, on);
        uint32_t value = 0;
        bool first = true;
        for (int l = 0; l < 32; l++) {
            if (!(on >> l & 1)) continue;
            const uint32_t y = x[l];
            const bool less = i.has(MOD_S32) ? static_cast<int32_t>(y) < static_cast<int32_t>(value) : y < value;
            if (first) value = y;
            else if (i.has(MOD_SUM) || i.has(MOD_ADD)) value += y;
            else if (i.has(MOD_MIN)) value = less ? y : value;
            else if (i.has(MOD_MAX)) value = less ? value : y;
            else if (i.has(MOD_XOR)) value ^= y;
            else if (i.has(MOD_OR)) value |= y;
            else value &= y;
            first = false;
        }
        return write(s[0], each([&](int) { return value; }));
    }
    case OP_ELECT: {
        const uint32_t elected = on & (0u - on);
        for (const Operand& p : i.pd) write_predicate(p, elected);
        if (!s.empty()) write(s[0], each([&](int) { return static_cast<uint32_t>(__builtin_ctz(on | 1u << 31)); }));
        return;
    }
    default:
        floats(i);
    }
}
