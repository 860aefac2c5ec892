// Tensor cores of one warp. Included by emulator.cpp.
//
// A register of all lanes, lane after lane, is an 8x8 matrix of 16-bit numbers by rows, or one of
// 4 pairs of columns in 32 bits: PTX manual, matrix fragments for mma.m16n8k16.

inline void to_floats(const Lanes& v, bool bfloat, float* out) {
    uint16_t bits[64];
    std::memcpy(bits, v.v, sizeof bits);
    if (bfloat)
        for (int n = 0; n < 64; n++) out[n] = bfloat_to_float(bits[n]);
    else
        for (int n = 0; n < 64; n++) out[n] = half_to_float(bits[n]);
}

void Warp::multiply(const Instruction& i) {  // HMMA m16n8k8, m16n8k16
    const int depth = i.count == 16816 ? 16 : i.count == 1688 ? 8 : 0;
    if (!depth || !starts(i.name, "HMMA") || i.has(MOD_TF32)) fail(i, "is a tensor-core operation that is not executed here");
    const bool bfloat = i.has(MOD_BF16), half_sums = i.has(MOD_F16) && !i.has(MOD_F32);
    if (on != FULL) fail(i, "runs with lanes switched off, where its result is undefined");
    Lanes t;
    float a[4][64], b[16][8], c[2][64];  // a[part][row · 8 + k], c[rows 0 to 7, 8 to 15][row · 8 + column]
    for (int part = 0; part < depth / 4; part++) to_floats(read(at(i.s, 1, i), t, part), bfloat, a[part]);
    for (int part = 0; part < depth / 8; part++) {
        float columns[64];
        to_floats(read(at(i.s, 2, i), t, part), bfloat, columns);
        for (int k = 0; k < 8; k++)
            for (int n = 0; n < 8; n++) b[8 * part + k][n] = columns[8 * n + k];
    }
    for (int half = 0; half < 2; half++) {
        if (half_sums) {
            to_floats(read(at(i.s, 3, i), t, half), false, c[half]);
            continue;
        }
        Lanes u;
        const Lanes &even = read(at(i.s, 3, i), t, 2 * half), &odd = read(i.s[3], u, 2 * half + 1);
        for (int l = 0; l < 32; l++) c[half][2 * l] = float_of(even[l]), c[half][2 * l + 1] = float_of(odd[l]);
    }
    for (int half = 0; half < 2; half++)
        for (int row = 0; row < 8; row++) {
            float sums[8];
            std::memcpy(sums, &c[half][8 * row], sizeof sums);
            for (int k = 0; k < depth; k++) {
                const float factor = a[half + 2 * (k / 8)][8 * row + k % 8];
                for (int n = 0; n < 8; n++) sums[n] += factor * b[k][n];
            }
            std::memcpy(&c[half][8 * row], sums, sizeof sums);
        }
    for (int half = 0; half < 2; half++) {
        if (half_sums) {
            write(i.s[0], each([&](int l) { return float_to_half(c[half][2 * l]) | float_to_half(c[half][2 * l + 1]) << 16; }), half);
            continue;
        }
        write(i.s[0], each([&](int l) { return bits_of(c[half][2 * l]); }), 2 * half);
        write(i.s[0], each([&](int l) { return bits_of(c[half][2 * l + 1]); }), 2 * half + 1);
    }
}

uint32_t Warp::special(const Instruction& i, int which) {
    const auto now = static_cast<uint64_t>(cta.steps);  // instructions issued so far
    const std::string& name = i.s[1].text;
    if (which == SR_CLOCKLO) return static_cast<uint32_t>(now);
    if (which == SR_CLOCKHI) return static_cast<uint32_t>(now >> 32);
    if (which == SR_CGA) return cta.rank;
    if (name == "SR_SWINHI") return SHARED_HIGH;
    if (name == "SR_LWINHI") return LOCAL_HIGH;
    if (name == "SR_CgaSize") return static_cast<uint32_t>(cta.cluster ? cta.cluster->ctas.size() : 1);
    if (starts(name, "SR_GLOBALTIMER")) return static_cast<uint32_t>(name.back() == 'I' ? now >> 32 : now);
    if (name == "SR_VIRTUALSMID" || name == "SR_VIRTID") return 0;
    fail(i, "reads " + name + ", which is not known here");
}
