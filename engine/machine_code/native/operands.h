// A warp's start, and operands that need its CTA: constants and addresses. Included by emulator.cpp.

Warp::Warp(Cta& c, int n) : cta(c), number(n) {
#if EXECUTES
    leave_unwritten(reinterpret_cast<uint8_t*>(R), static_cast<size_t>(c.request.code->registers) * sizeof R[0]);
    R[RZ] = {};
    std::fill(U, U + RZ, UNWRITTEN);
#else
    std::memset(static_cast<void*>(R), 0, sizeof R);
#endif
    std::fill(P, P + 8, 0u);
    std::fill(UP, UP + 8, 0u);
    P[PT] = UP[PT] = FULL;
    std::fill(pc, pc + 32, 0);
    const auto& b = c.request.block;
    const int64_t threads = static_cast<int64_t>(b[0]) * b[1] * b[2];
    for (int l = 0; l < 32; l++)
        if (n * 32 + l < threads) alive |= 1u << l;
    local.assign(static_cast<size_t>(c.request.local_bytes) * 32 + 4, 0);  // a word may begin at the last byte
#if EXECUTES
    leave_unwritten(local.data(), local.size());
#endif
    local_data.assign(c.request.local_bytes / 4, 0);
}

void Warp::refuse(const char* what) const { fail(cta.code[static_cast<size_t>(index)], what); }
const Instruction& Warp::cta_code() const { return cta.code[static_cast<size_t>(index)]; }

void Warp::land(size_t count) {
    for (size_t k = 0; k < count; k++) cta.hazards.shared(copies[k].first, copies[k].second, number, true);
    copies.erase(copies.begin(), copies.begin() + static_cast<std::ptrdiff_t>(count));
}

void Warp::steered() {
    for (int k = 1; k < 4; k++) cta.control_axes |= static_cast<uint8_t>((marks[k] != 0) << (k - 1));
}

uint32_t Warp::constant(const Operand& o, int word) {
    uint64_t offset = static_cast<uint64_t>(o.imm) + 4 * static_cast<uint64_t>(word);
    const int lane = on ? __builtin_ctz(on) : 0;
    if (o.reg != RZ) offset += R[o.reg][lane], marks |= spread(rmarks[o.reg], on);
    if (o.ureg >= 0) offset += U[o.ureg], marks |= umarks[o.ureg];
    if (o.bank >= 8 || !cta.request.constants[o.bank]) return 0;
    const int64_t last = cta.request.constant_bytes[o.bank] - 4;
    if (last < 0 || offset > static_cast<uint64_t>(last)) return 0;
    uint32_t value;
    std::memcpy(&value, cta.request.constants[o.bank] + offset, 4);
    return value;
}

void Warp::addresses(const Operand& o, bool global, Wide& out) {
    // Global addresses are 64 bits: a register pair unless its suffix says U32.
    for (auto& x : out.v) x = static_cast<uint64_t>(o.imm);
    if (o.reg != RZ) {
        const bool pair = global && (o.wide || o.half == 0) && !(o.half == 1);
        marks |= rmarks[o.reg];
        for (int l = 0; l < 32; l++) out[l] += static_cast<uint64_t>(R[o.reg][l]) * o.scale;
        if (pair) {
            marks |= rmarks[o.reg + 1];
            for (int l = 0; l < 32; l++) out[l] += static_cast<uint64_t>(R[o.reg + 1][l]) << 32;
        }
    }
    if (o.ureg >= 0) {
        const bool pair = global && (o.uwide || o.wide || o.reg == RZ || o.half == 1);
        const uint64_t base = U[o.ureg] | (pair ? static_cast<uint64_t>(U[o.ureg + 1]) << 32 : 0);
        marks |= umarks[o.ureg];
        for (auto& x : out.v) x += base;
    }
    if (!global)
        for (auto& x : out.v) x &= 0xffffffffu;
}
