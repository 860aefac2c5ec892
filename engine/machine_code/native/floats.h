// Floating point by IEEE 754, without directed rounding except in conversions. Included by
// emulator.cpp.

inline float rounded(const Instruction& i, double value) {
    float near = static_cast<float>(value);
    if (i.has(MOD_RP) && near < value) near = std::nextafter(near, INFINITY);
    if (i.has(MOD_RM) && near > value) near = std::nextafter(near, -INFINITY);
    if (i.has(MOD_RZ) && std::fabs(near) > std::fabs(value)) near = std::nextafter(near, 0.0f);
    return near;
}

inline float flushed(const Instruction& i, float value) {
    return i.has(MOD_FTZ) && std::fabs(value) < 0x1p-126f ? std::copysign(0.0f, value) : value;
}

// a · b + c, rounded once in the instruction's direction.
inline float fused(const Instruction& i, float a, float b, float c) {
    const float near = __builtin_fmaf(a, b, c);
    if (!(i.has(MOD_RP) || i.has(MOD_RM) || i.has(MOD_RZ)) || near != near) return near;
    // The product is exact in double, and so is the rounding error of its sum with c (Knuth's two-sum).
    const double product = static_cast<double>(a) * b, sum = product + c, part = sum - product;
    const double rest = (product - (sum - part)) + (c - part);
    if (std::isinf(sum)) return near;
    const double off = (near - sum) - rest;  // difference between the nearest float and the value
    const bool down = i.has(MOD_RM) || (i.has(MOD_RZ) && near > 0), up = i.has(MOD_RP) || (i.has(MOD_RZ) && near < 0);
    if (down && off > 0) return std::nextafter(near, -INFINITY);
    if (up && off < 0) return std::nextafter(near, INFINITY);
    return near;
}

// 2 to the power x, within an ulp. Without branches and calls, so that loops over lanes vectorise.
inline float power_of_two(float x) {
    float y = x < -160.0f ? -160.0f : x;
    y = y > 160.0f ? 160.0f : y;
    const float whole = __builtin_rintf(y), f = y - whole;  // the Taylor series of e^(f ln 2), |f| <= 0.5
    float p = 1.5252734e-5f;
    p = p * f + 1.5403530e-4f;
    p = p * f + 1.3333558e-3f;
    p = p * f + 9.6181291e-3f;
    p = p * f + 5.5504109e-2f;
    p = p * f + 0.24022651f;
    p = p * f + 0.69314718f;
    p = p * f + 1.0f;
    const int32_t n = static_cast<int32_t>(whole == whole ? whole : 0.0f), half = n >> 1;  // in two steps: it may be denormal
    return p * float_of(static_cast<uint32_t>(half + 127) << 23) * float_of(static_cast<uint32_t>(n - half + 127) << 23);
}

// relu; NaN stays NaN.
inline float without_negatives(float value) { return value > 0 || value != value ? value : 0.0f; }

// Converts to 16 bits, rounded once in the instruction's direction.
inline uint32_t narrowed(const Instruction& i, float value) {
    const bool bfloat = i.has(MOD_BF16);
    if (i.has(MOD_RELU)) value = without_negatives(value);
    const uint32_t near = bfloat ? float_to_bfloat(value) : float_to_half(value);
    const float back = bfloat ? bfloat_to_float(near) : half_to_float(near);
    if (value != value || back == value) return near;
    const bool above = back > value, negative = near >> 15;
    const bool toward_zero = i.has(MOD_RZ) || (i.has(MOD_RM) && !negative) || (i.has(MOD_RP) && negative);
    const bool from_zero = (i.has(MOD_RM) && negative) || (i.has(MOD_RP) && !negative);
    // Floats of the next larger or smaller magnitude have neighbouring bit patterns.
    if (toward_zero && above != negative) return near - 1;
    if (from_zero && above == negative) return near + 1;
    return near;
}

// Rounds a double to float, to odd, so that a second rounding to 16 bits is correct.
inline float to_odd(double value) {
    float near = static_cast<float>(value);
    if (near == value || near != near || std::isinf(near)) return near;
    if (std::fabs(near) > std::fabs(value)) near = std::nextafter(near, 0.0f);
    return float_of(bits_of(near) | 1);
}

// A 16-bit source as float; immediates in the code are floats already.
inline float from_half(const Operand& o, uint32_t bits) {
    if (o.kind == Kind::IMM) return float_of(bits);
    return half_to_float((o.half == 2 ? bits >> 16 : bits) & 0xffff);
}

inline double whole(const Instruction& i, double value) {
    if (i.has(MOD_TRUNC)) return std::trunc(value);
    if (i.has(MOD_FLOOR)) return std::floor(value);
    if (i.has(MOD_CEIL)) return std::ceil(value);
    return std::nearbyint(value);
}

template <typename T>
uint64_t to_integer(double value, double low, double high) {
    if (value != value) return 0;
    return static_cast<uint64_t>(static_cast<T>(std::min(std::max(value, low), high)));
}

inline float minmax(float a, float b, bool least, bool keeps_nan) {
    if (a != a) return keeps_nan ? a : b;
    if (b != b) return keeps_nan ? b : a;
    return least ? std::min(a, b) : std::max(a, b);
}

void Warp::floats(const Instruction& i) {
    Lanes ta, tb, tc;
    const std::vector<Operand>& s = i.s;
    auto arg = [&](size_t n, Lanes& t) -> const Lanes& { return floating(at(s, n, i), t); };
    auto f = [](uint32_t bits) { return float_of(bits); };
    if (i.rounds && (i.op == OP_FADD || i.op == OP_FMUL || i.op == OP_FFMA)) {
        const Lanes &x = arg(1, ta), &y = arg(2, tb), &z = i.op == OP_FFMA ? arg(3, tc) : y;
        return write(s[0], each([&](int l) {
            const float a = flushed(i, f(x[l])), b = flushed(i, f(y[l])), c = flushed(i, f(z[l]));
            float value = i.op == OP_FADD ? fused(i, a, 1, b) : i.op == OP_FMUL ? fused(i, a, b, -0.0f) : fused(i, a, b, c);
            value = flushed(i, value);
            if (i.has(MOD_SAT)) value = value > 0 ? std::min(value, 1.0f) : 0.0f;
            return bits_of(value);
        }));
    }
    switch (i.op) {
    case OP_FADD: case OP_FMUL: {
        const Lanes &x = arg(1, ta), &y = arg(2, tb);
        if (i.op == OP_FADD) return write(s[0], each([&](int l) { return bits_of(f(x[l]) + f(y[l])); }));
        return write(s[0], each([&](int l) { return bits_of(f(x[l]) * f(y[l])); }));
    }
    case OP_FFMA: {
        const Lanes &x = arg(1, ta), &y = arg(2, tb), &z = arg(3, tc);
        return write(s[0], each([&](int l) { return bits_of(__builtin_fmaf(f(x[l]), f(y[l]), f(z[l]))); }));
    }
    case OP_FADD2: case OP_FMUL2: case OP_FFMA2: {  // two floats in a register pair
        Lanes out[2];
        for (int word = 0; word < 2; word++) {
            const Lanes &x = read(at(s, 1, i), ta, word), &y = read(at(s, 2, i), tb, word);
            const Lanes& z = i.op == OP_FFMA2 ? read(at(s, 3, i), tc, word) : y;
            out[word] = each([&](int l) {
                if (i.op == OP_FADD2) return bits_of(f(x[l]) + f(y[l]));
                return bits_of(i.op == OP_FMUL2 ? f(x[l]) * f(y[l]) : __builtin_fmaf(f(x[l]), f(y[l]), f(z[l])));
            });
        }
        write(s[0], out[0]);
        return write(s[0], out[1], 1);
    }
    case OP_FMNMX: case OP_FMNMX3: {
        Lanes value = arg(1, ta);
        const uint32_t least = i.ps.empty() ? FULL : predicate(i.ps[0]);
        for (size_t n = 2; n < s.size(); n++) {
            const Lanes& y = arg(n, tb);
            for (int l = 0; l < 32; l++) value[l] = bits_of(minmax(f(value[l]), f(y[l]), least >> l & 1, i.has(MOD_NAN)));
        }
        if (i.rounds) value = each([&](int l) { return bits_of(flushed(i, f(value[l]))); });
        return write(s[0], value);
    }
    case OP_FSETP: {
        const Lanes &x = arg(0, ta), &y = arg(1, tb);
        float a[32], b[32];
        for (int l = 0; l < 32; l++) a[l] = flushed(i, f(x[l])), b[l] = flushed(i, f(y[l]));
        const uint32_t result = compare(i, a, b);
        const uint32_t other = i.ps.empty() ? FULL : predicate(i.ps[0]);
        write_predicate(at(i.pd, 0, i), join(i, result, other));
        if (i.pd.size() > 1) write_predicate(i.pd[1], join(i, ~result, other));
        return;
    }
    case OP_FSET: {
        const Lanes &x = arg(1, ta), &y = arg(2, tb);
        float a[32], b[32];
        for (int l = 0; l < 32; l++) a[l] = flushed(i, f(x[l])), b[l] = flushed(i, f(y[l]));
        const uint32_t result = join(i, compare(i, a, b), i.ps.empty() ? FULL : predicate(i.ps[0]));
        return write(s[0], each([&](int l) { return result >> l & 1 ? (i.has(MOD_BF) ? ONE : FULL) : 0; }));
    }
    case OP_FCHK:  // whether a division needs its slow path; not for normal numbers
        if (REAL) {
            const Lanes &x = arg(0, ta), &y = arg(1, tb);
            return write_predicate(at(i.pd, 0, i), mask_of([&](int l) {
                const int a = static_cast<int>(x[l] >> 23 & 255), b = static_cast<int>(y[l] >> 23 & 255);
                return a < 25 || a == 255 || b == 0 || b > 252 || a - b > 125 || b - a > 125;
            }));
        }
        marks = NO_MARKS;
        return write_predicate(at(i.pd, 0, i), 0);
    case OP_MUFU: {
        if (i.has(MOD_RCP64H) || i.has(MOD_RSQ64H)) {  // operates on the upper half of a double
            const Lanes& x = read(at(s, 1, i), ta);
            return write(s[0], each([&](int l) {
                uint64_t bits = static_cast<uint64_t>(x[l]) << 32;
                double value;
                std::memcpy(&value, &bits, 8);
                value = i.has(MOD_RCP64H) ? 1 / value : 1 / std::sqrt(value);
                std::memcpy(&bits, &value, 8);
                return static_cast<uint32_t>(bits >> 32);
            }));
        }
        const Lanes& x = arg(1, ta);
        if (i.has(MOD_EX2)) return write(s[0], each([&](int l) { return bits_of(power_of_two(f(x[l]))); }));
        if (i.has(MOD_RCP)) return write(s[0], each([&](int l) { return bits_of(1 / f(x[l])); }));
        return write(s[0], each([&](int l) {
            const float v = f(x[l]);
            if (i.has(MOD_RSQ)) return bits_of(1 / std::sqrt(v));
            if (i.has(MOD_LG2)) return bits_of(std::log2(v));
            if (i.has(MOD_SIN)) return bits_of(std::sin(v));
            if (i.has(MOD_COS)) return bits_of(std::cos(v));
            if (i.has(MOD_TANH)) return bits_of(std::tanh(v));
            return bits_of(std::sqrt(v));
        }));
    }
    case OP_FRND: {
        const Lanes& x = arg(1, ta);
        if (i.has(MOD_F16))
            return write(s[0], each([&](int l) {
                const float value = from_half(s[1], x[l]);
                return float_to_half(static_cast<float>(whole(i, value)));
            }));
        return write(s[0], each([&](int l) { return bits_of(flushed(i, static_cast<float>(whole(i, f(x[l]))))); }));
    }
    case OP_I2F: {
        const bool wide = i.has(MOD_U64) || i.has(MOD_S64);
        Wide v{};
        if (wide) read_wide(at(s, 1, i), v);
        const Lanes& x = integer(at(s, 1, i), ta);
        auto number = [&](int l) -> double {
            if (i.has(MOD_U64)) return static_cast<double>(v[l]);
            if (i.has(MOD_S64)) return static_cast<double>(static_cast<int64_t>(v[l]));
            uint32_t w = x[l];
            if (s[1].half >= 8) w = w >> 8 * (s[1].half - 8) & 255;
            if (s[1].half == 2) w >>= 16;
            if (i.has(MOD_U8)) return w & 255;
            if (i.has(MOD_S8)) return static_cast<int8_t>(w);
            if (i.has(MOD_U16)) return w & 0xffff;
            if (i.has(MOD_S16)) return static_cast<int16_t>(w);
            return i.has(MOD_U32) ? static_cast<double>(w) : static_cast<double>(static_cast<int32_t>(w));
        };
        if (i.has(MOD_F64)) {
            Wide out;
            for (int l = 0; l < 32; l++) { const double d = number(l); std::memcpy(&out[l], &d, 8); }
            return write_wide(s[0], out);
        }
        if (i.has(MOD_F16)) return write(s[0], each([&](int l) { return float_to_half(static_cast<float>(number(l))); }));
        return write(s[0], each([&](int l) { return bits_of(rounded(i, number(l))); }));
    }
    case OP_F2I: {
        Wide v{};
        const bool from_double = i.has(MOD_F64);
        if (from_double) read_wide(at(s, 1, i), v);
        const Lanes& x = floating(at(s, 1, i), ta);
        auto number = [&](int l) -> double {
            double d;
            if (from_double) { std::memcpy(&d, &v[l], 8); return whole(i, d); }
            return whole(i, i.has(MOD_F16) ? from_half(s[1], x[l]) : f(x[l]));
        };
        if (i.has(MOD_U64) || i.has(MOD_S64)) {
            Wide out;
            for (int l = 0; l < 32; l++)
                out[l] = i.has(MOD_U64) ? to_integer<uint64_t>(number(l), 0, 1.8446744073709550e19) : to_integer<int64_t>(number(l), -9.2233720368547750e18, 9.2233720368547750e18);
            return write_wide(s[0], out);
        }
        return write(s[0], each([&](int l) {
            if (i.has(MOD_U32)) return static_cast<uint32_t>(to_integer<uint32_t>(number(l), 0, 4294967295.0));
            if (i.has(MOD_U16)) return static_cast<uint32_t>(to_integer<uint32_t>(number(l), 0, 65535.0));
            if (i.has(MOD_U8)) return static_cast<uint32_t>(to_integer<uint32_t>(number(l), 0, 255.0));
            return static_cast<uint32_t>(to_integer<int32_t>(number(l), -2147483648.0, 2147483647.0));
        }));
    }
    case OP_F2F: {
        if (i.has(MOD_F64)) {
            const bool widens = starts(i.name, "F2F.F64") || i.name.find(".F64.F32") != std::string::npos;
            if (widens) {
                const Lanes& x = arg(1, ta);
                Wide out;
                for (int l = 0; l < 32; l++) { const double d = f(x[l]); std::memcpy(&out[l], &d, 8); }
                return write_wide(s[0], out);
            }
            Wide v;
            read_wide(at(s, 1, i), v);
            return write(s[0], each([&](int l) { double d; std::memcpy(&d, &v[l], 8); return bits_of(rounded(i, d)); }));
        }
        if (REAL && !starts(i.name, "F2F.F16.F32") && !starts(i.name, "F2F.BF16.F32") && !starts(i.name, "F2F.F32.F16"))
            fail(i, "is a conversion that is not supported here");
        const Lanes& x = arg(1, ta);
        if (starts(i.name, "F2F.F16") || starts(i.name, "F2F.BF16"))
            return write(s[0], each([&](int l) { return narrowed(i, f(x[l])); }));
        if (i.has(MOD_F16)) return write(s[0], each([&](int l) { return bits_of(half_to_float(s[1].half == 2 ? x[l] >> 16 : x[l] & 0xffff)); }));
        return write(s[0], x);
    }
    case OP_F2FP: {
        if (i.has(MOD_E4M3) || i.has(MOD_E5M2)) return fp8(i);
        const Lanes &x = arg(1, ta), &y = arg(2, tb);
        if (i.rounds || i.has(MOD_RELU))
            return write(s[0], each([&](int l) { return narrowed(i, f(x[l])) << 16 | narrowed(i, f(y[l])); }));
        const bool bfloat = i.has(MOD_BF16);
        return write(s[0], each([&](int l) {
            if (bfloat) return float_to_bfloat(f(x[l])) << 16 | float_to_bfloat(f(y[l]));
            return float_to_half(f(x[l])) << 16 | float_to_half(f(y[l]));
        }));
    }
    case OP_HADD2: case OP_HMUL2: case OP_HFMA2: case OP_HMNMX2: case OP_HSETP2: case OP_HSET2:
        return halves(i);
    case OP_DADD: case OP_DMUL: case OP_DFMA: case OP_DSETP:
        return doubles(i);
    case OP_HMMA: {
#if EXECUTES
        return multiply(i);
#endif
        // Accumulators: m16n8 in FP32 or INT32 takes four registers, in FP16 two.
        for (const Operand& o : s) read(o, ta);
        depends_on_data();
        const bool half = i.has(MOD_F16) && !i.has(MOD_F32);
        for (int word = 0; word < (half ? 2 : 4); word++) write(at(s, 0, i), each([&](int) { return half ? HALF_ONES : ONE; }), word);
        return;
    }
    default:  // unsupported: only its first register is known to be written
        if (REAL) fail(i, "is not supported here, so that its result cannot be computed");
        cta.stand_in[static_cast<size_t>(index)] = 1;
        for (const Operand& o : s) read(o, ta);
        depends_on_data();
        if (!s.empty())
            for (int word = 0; word < (i.width == 8 ? 2 : 1); word++) write(s[0], each([&](int) { return ONE; }), word);
        for (const Operand& p : i.pd) write_predicate(p, 0);
    }
}

void Warp::fp8(const Instruction& i) {  // F2FP from and to two FP8 numbers
    const bool e5m2 = i.has(MOD_E5M2), relu = i.has(MOD_RELU), from_floats = i.has(MOD_PACK_AB_MERGE_C), bfloat = i.has(MOD_BF16);
    Lanes ta, tb, tc;
    if (i.has(MOD_UNPACK_B) && i.has(MOD_F16) && !i.rounds) {
        const Lanes& x = read(at(i.s, 1, i), ta);
        const int shift = i.s[1].half == 2 ? 16 : 0;
        return write(i.s[0], each([&](int l) {
            const uint32_t two = FP8_HALVES.pair(x[l] >> shift, e5m2);
            if (!relu) return two;
            const auto kept = [](uint32_t half) { return (half & 0x8000u) && (half & 0x7fffu) <= 0x7c00u ? 0u : half; };
            return kept(two & 0xffffu) | kept(two >> 16) << 16;
        }));
    }
    const bool from_halves = i.has(MOD_UNPACK_B_MERGE_C) && (i.has(MOD_F16) || bfloat);
    if (!i.has(MOD_SATFINITE) || i.rounds || !(from_halves || (from_floats && i.has(MOD_F32)))) fail(i, "is a conversion that is not supported here");
    // The two new bytes are followed by the lower two of the last operand.
    const Lanes &x = from_floats ? floating(at(i.s, 1, i), ta) : read(at(i.s, 1, i), ta), &rest = read(at(i.s, from_floats ? 3 : 2, i), tc);
    const Lanes& y = from_floats ? floating(at(i.s, 2, i), tb) : x;
    write(i.s[0], each([&](int l) {
        float high = float_of(x[l]), low = float_of(y[l]);
        if (from_halves && bfloat) high = bfloat_to_float(x[l] >> 16), low = bfloat_to_float(x[l] & 0xffff);
        else if (from_halves) high = half_to_float(x[l] >> 16), low = half_to_float(x[l] & 0xffff);
        if (relu) high = without_negatives(high), low = without_negatives(low);
        return float_to_fp8(low, e5m2) | float_to_fp8(high, e5m2) << 8 | rest[l] << 16;
    }));
}

void Warp::halves(const Instruction& i) {
    const bool bfloat = i.has(MOD_BF16) || i.has(MOD_BF16_V2), compares = i.op == OP_HSETP2;
    if (i.op == OP_HSET2) return compare_halves(i);
    struct Floats { float v[32]; };
    auto convert = [&](const Operand& o, const Lanes& v, int part) {
        const uint32_t shift = o.half == 2 || (o.half != 1 && part) ? 16 : 0;
        if (o.whole_float) {
            Floats out;
            for (int l = 0; l < 32; l++) out.v[l] = float_of(o.neg ? v[l] ^ 0x80000000u : v[l]);
            return out;
        }
        const uint32_t kept = o.abs ? 0x7fffffffu : FULL, flipped = o.neg ? 0x80000000u : 0;
        Floats out;
        if (bfloat)
            for (int l = 0; l < 32; l++) out.v[l] = bfloat_to_float(v[l] >> shift & 0xffff);
        else
            for (int l = 0; l < 32; l++) out.v[l] = half_to_float(v[l] >> shift & 0xffff);
        if (o.abs || o.neg)
            for (int l = 0; l < 32; l++) out.v[l] = float_of((bits_of(out.v[l]) & kept) ^ flipped);
        return out;
    };
    auto put = [&](float v) { return bfloat ? float_to_bfloat(v) : float_to_half(v); };
    const size_t first = compares ? 0 : 1;
    Lanes t[3];
    const Lanes* v[3] = {};
    for (size_t n = 0; n < 3 && first + n < i.s.size(); n++) v[n] = &read(i.s[first + n], t[n]);
    if (!v[0] || !v[1] || (i.op == OP_HFMA2 && !v[2])) fail(i, "has an operand form that is not supported here");
    if (compares) {
        const uint32_t other = i.ps.empty() ? FULL : predicate(i.ps[0]);
        for (int part = 0; part < 2 && part < static_cast<int>(i.pd.size()); part++) {
            const Floats a = convert(i.s[0], *v[0], part), b = convert(i.s[1], *v[1], part);
            write_predicate(i.pd[static_cast<size_t>(part)], join(i, compare(i, a.v, b.v), other));
        }
        return;
    }
    // The compiler loads constants by HFMA2 with zero factors: the bits of the third operand are kept.
    const bool moves = i.op == OP_HFMA2 && i.s[1].reg == RZ && i.s[2].reg == RZ && i.s[1].kind == Kind::REG && i.s[2].kind == Kind::REG &&
                       v[2] && !i.s[3].neg && !i.s[3].abs && i.s[3].half != 1 && i.s[3].half != 2;
    const bool to_float = i.op != OP_HMNMX2 && i.has(MOD_F32);
    if (moves && !to_float) return write(i.s[0], *v[2]);
    const uint32_t least = i.op != OP_HMNMX2 || i.ps.empty() ? FULL : predicate(i.ps[0]);
    Lanes out;
    for (int part = 0; part < (to_float ? 1 : 2); part++) {
        Floats x = convert(i.s[first], *v[0], part);
        const Floats y = convert(i.s[first + 1], *v[1], part);
        if (i.op == OP_HADD2) {
            for (int l = 0; l < 32; l++) x.v[l] += y.v[l];
        } else if (i.op == OP_HMNMX2) {
            for (int l = 0; l < 32; l++) x.v[l] = minmax(x.v[l], y.v[l], least >> l & 1, i.has(MOD_NAN));
        } else {
            for (int l = 0; l < 32; l++) x.v[l] *= y.v[l];
            if (i.op == OP_HFMA2 && v[2]) {
                const Floats z = convert(i.s[first + 2], *v[2], part);
                for (int l = 0; l < 32; l++) x.v[l] = to_odd(static_cast<double>(x.v[l]) + z.v[l]);
            }
        }
        if (i.has(MOD_SAT))
            for (int l = 0; l < 32; l++) x.v[l] = x.v[l] > 0 ? std::min(x.v[l], 1.0f) : 0.0f;
        if (i.has(MOD_RELU))
            for (int l = 0; l < 32; l++) x.v[l] = without_negatives(x.v[l]);
        if (to_float) return write(i.s[0], each([&](int l) { return bits_of(x.v[l]); }));
        for (int l = 0; l < 32; l++) out[l] = (part ? out[l] : 0) | put(x.v[l]) << 16 * part;
    }
    write(i.s[0], out);
}

void Warp::compare_halves(const Instruction& i) {  // HSET2: 1.0 or all ones where the comparison is true
    const bool bfloat = i.has(MOD_BF16) || i.has(MOD_BF16_V2);
    Lanes t[2], out{};
    const Lanes* v[2] = {&read(at(i.s, 1, i), t[0]), &read(at(i.s, 2, i), t[1])};
    const uint32_t other = i.ps.empty() ? FULL : predicate(i.ps[0]);
    const uint32_t yes = !i.has(MOD_BF) ? 0xffffu : bfloat ? 0x3f80u : 0x3c00u;
    for (int part = 0; part < 2; part++) {
        float x[2][32];
        for (int n = 0; n < 2; n++) {
            const Operand& o = i.s[static_cast<size_t>(n) + 1];
            const int shift = o.half == 2 || (o.half != 1 && part) ? 16 : 0;
            for (int l = 0; l < 32; l++) {
                const uint32_t bits = (*v[n])[l] >> shift & 0xffff;
                x[n][l] = bfloat ? bfloat_to_float(bits) : half_to_float(bits);
                if (o.abs) x[n][l] = std::fabs(x[n][l]);
                if (o.neg) x[n][l] = -x[n][l];
            }
        }
        const uint32_t result = join(i, compare(i, x[0], x[1]), other);
        for (int l = 0; l < 32; l++) out[l] |= (result >> l & 1 ? yes : 0) << 16 * part;
    }
    write(i.s[0], out);
}

void Warp::doubles(const Instruction& i) {
    const bool compares = i.op == OP_DSETP;
    const size_t first = compares ? 0 : 1;
    double v[3][32] = {};
    for (size_t n = 0; n < 3 && first + n < i.s.size(); n++) {
        Operand o = i.s[first + n];
        const bool neg = o.neg, abs = o.abs;
        o.neg = o.abs = false;
        Wide bits;
        read_wide(o, bits);
        if (o.kind == Kind::IMM && !o.wide)  // hexadecimal: the upper half
            for (auto& x : bits.v) x <<= 32;
        for (int l = 0; l < 32; l++) {
            std::memcpy(&v[n][l], &bits[l], 8);
            if (abs) v[n][l] = std::fabs(v[n][l]);
            if (neg) v[n][l] = -v[n][l];
        }
    }
    if (compares) {
        const uint32_t result = compare(i, v[0], v[1]);
        const uint32_t other = i.ps.empty() ? FULL : predicate(i.ps[0]);
        write_predicate(at(i.pd, 0, i), join(i, result, other));
        if (i.pd.size() > 1) write_predicate(i.pd[1], join(i, ~result, other));
        return;
    }
    Wide out;
    for (int l = 0; l < 32; l++) {
        const double d = i.op == OP_DADD ? v[0][l] + v[1][l] : i.op == OP_DMUL ? v[0][l] * v[1][l] : std::fma(v[0][l], v[1][l], v[2][l]);
        std::memcpy(&out[l], &d, 8);
    }
    write_wide(at(i.s, 0, i), out);
}
