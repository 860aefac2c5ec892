// Straight-line runs of instructions, without divergent branches or waits: lanes stay converged, and only the
// program counter advances. Included by emulator.cpp.

// Runs only for the lanes `on`: values of other lanes are restored.
void Warp::run_in_part(const Quick& q) {
    Lanes before[4];
    for (int n = 0; n < q.words; n++) before[n] = R[q.to + n];
    const uint32_t flags = P[q.predicate];
    q.run(*this, q);
    for (int n = 0; n < q.words; n++)
        for (int l = 0; l < 32; l++) R[q.to + n][l] = on >> l & 1 ? R[q.to + n][l] : before[n][l];
    P[q.predicate] = (flags & ~on) | (P[q.predicate] & on);
}

// Executes from `here` on, for the lanes `active` of those that are `ready`; returns whether it did.
bool Warp::go_straight(int here, uint32_t active, uint32_t ready) {
    // Ends at the address at which other lanes wait.
    int limit = static_cast<int>(cta.code.size());
    if (active != ready)
        for (int l = 0; l < 32; l++)
            if ((ready & ~active) >> l & 1) limit = std::min(limit, pc[l]);
    const Instruction* const code = cta.code.data();
    const Quick* const quick = cta.request.code->quick.data();
    const bool plainly = !looked_for() && !cta.request.last_write;  // no access is tracked
    int n = here;
    const int64_t most = turn_ends - cta.steps;
    int64_t executed = 0;
    while (n < limit && executed < most) {
        const Quick& q = quick[n];
        uint32_t lanes = active;
        if (q.guarded) {
            const uint32_t guard = q.guard_uniform ? UP[q.guard] : P[q.guard];
            lanes &= q.guard_not ? ~guard : guard;
        }
        if (q.run && plainly && (lanes == FULL || (lanes && (q.any || q.words)))) {
            executed++;
            index = n++;
            on = lanes;
            if (lanes == FULL || q.any) q.run(*this, q);
            else run_in_part(q);
            continue;
        }
        const Instruction& i = code[n];
        if (!q.straight) {
            // Only a branch that all lanes take, or none.
            if (i.op != OP_BRA || !i.pd.empty() || i.has(MOD_DIV) || (lanes && lanes != active) || (lanes && i.target < 0)) break;
            executed++;
            n = lanes ? i.target : n + 1;
            if (active != ready && lanes) break;
            continue;
        }
        executed++;
        index = n++;
        if (!lanes) continue;
        on = lanes;
        if (!i.unknown.empty()) fail(i, "has the modifier " + i.unknown + ", which is not supported here");
        if (i.op >= OP_LDS && i.op != OP_HMMA) memory(i);
        else arithmetic(i);
    }
    if (!executed) return false;
    exclusive = 0;
    cta.steps += executed;
    for (int l = 0; l < 32; l++) pc[l] = active >> l & 1 ? n : pc[l];
    return true;
}
