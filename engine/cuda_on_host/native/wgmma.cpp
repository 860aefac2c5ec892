// wgmma: issued by four warps, executed when they wait for it. Until then the accumulator registers
// hold NaN and the operands must not change, so that a missing wait, fence or release is detected.
namespace coh {

static constexpr int M = 64, K = 16;
static constexpr size_t A_BYTES = 16;  // a thread's registers of A

static Warpgroup &own_warpgroup() {
    HopperState &state = hopper();
    state.warpgroups.resize((worker->num_threads + WARPGROUP - 1) / WARPGROUP);
    return state.warpgroups[self->linear / WARPGROUP];
}
static int first_warp_of_group() { return (int)(self->warp & ~3u); }

// The thread and register that hold element (row, column) of D: PTX manual, "Register fragments for
// wgmma.mma_async.m64nNk16".
static inline int accumulator_thread(int row, int column) {
    return row / 16 * 32 + row % 8 * 4 + column / 2 % 4;
}
static inline int accumulator_register(int row, int column) {
    return column / 8 * 4 + 2 * (row / 8 % 2) + column % 2;
}

// ---- issue ----
struct IssueOperand {
    float *d;
    int n;
    const WgmmaOperands *operands;
    Site site;
};

static size_t find_or_start_accumulator(Warpgroup &group, void **threads, int n, bool accumulate) {
    const auto &first = *(IssueOperand *)threads[0];
    auto is_same = [&](const Accumulator &known) {
        return known.registers[0] == first.d && known.n == n;
    };
    size_t index = 0;
    while (index < group.accumulators.size() && !is_same(group.accumulators[index])) index++;
    if (index == group.accumulators.size()) group.accumulators.emplace_back();
    Accumulator &accumulator = group.accumulators[index];
    if (accumulator.pending) return index;
    accumulator.n = n;
    accumulator.matrix.assign((size_t)M * n, 0.0f);
    for (int t = 0; t < WARPGROUP; t++) accumulator.registers[t] = ((IssueOperand *)threads[t])->d;
    for (int row = 0; row < M && accumulate; row++) {
        for (int column = 0; column < n; column++) {
            accumulator.matrix[(size_t)row * n + column] =
                accumulator.registers[accumulator_thread(row, column)]
                                     [accumulator_register(row, column)];
        }
    }
    const size_t register_bytes = n / 2 * sizeof(float);
    for (int t = 0; t < WARPGROUP; t++) memset(accumulator.registers[t], 0xff, register_bytes);
    return index;
}

static void issue_for_group(void **threads, uint32_t) {
    Warpgroup &group = own_warpgroup();
    const IssueOperand &first = *(IssueOperand *)threads[0];
    WgmmaOperation operation;
    operation.operands = *first.operands;
    operation.site = first.site;
    operation.a_in_registers = first.operands->a_registers != nullptr;
    for (int t = 0; t < WARPGROUP && operation.a_in_registers; t++) {
        const WgmmaOperands &given = *((IssueOperand *)threads[t])->operands;
        memcpy(operation.a_registers[t], given.a_registers, A_BYTES);
        operation.a_places[t] = checking() ? (uintptr_t)given.a_place : 0;
    }
    operation.accumulator =
        find_or_start_accumulator(group, threads, first.n, first.operands->accumulate);
    group.accumulators[operation.accumulator].pending++;
    worker->running_products |= 1u << self->linear / WARPGROUP;
    group.operations.push_back(operation);
}

// Check build: a wgmma.fence is required between other accesses to the registers and the wgmma.
static void require_fence(const float *d, int n, const WgmmaOperands &operands, Site site) {
    const Warpgroup &group = own_warpgroup();
    const unsigned t = self->linear % WARPGROUP;
    if (operands.a_registers && !group.fenced_since_wait[t]) {
        fail_at("wgmma_fence missing", site, "A is in registers without a wgmma_fence() since the "
                "last wait");
    }
    for (const Accumulator &accumulator : group.accumulators) {
        if (accumulator.registers[t] != d || accumulator.n != n) continue;
        if (accumulator.pending || accumulator.seen.empty()) return;
        if (memcmp(&accumulator.seen[(size_t)t * (n / 2)], d, n / 2 * sizeof(float))) {
            fail_at("wgmma_fence missing", site, "the accumulators were changed since the last "
                    "wgmma_fence()");
        }
        return;
    }
    if (!group.fenced_ever[t]) {
        fail_at("wgmma_fence missing", site, "no wgmma_fence() came before the first wgmma");
    }
}

void wgmma(float *d, int n, const WgmmaOperands &operands, Site site) {
    if (n < 8 || n > 256 || n % 8) {
        fail_at("bad wgmma", site, "n is %d: a multiple of 8 from 8 to 256 is needed", n);
    }
    if (checking()) require_fence(d, n, operands, site);
    IssueOperand operand{d, n, &operands, site};
    group_collective(first_warp_of_group(), 4, issue_for_group, &operand, site);
}

void wgmma_fence(Site) {
    Warpgroup &group = own_warpgroup();
    const unsigned t = self->linear % WARPGROUP;
    group.fenced_ever[t] = group.fenced_since_wait[t] = true;
    if (!checking()) return;
    for (Accumulator &accumulator : group.accumulators) {
        if (accumulator.pending || accumulator.seen.empty()) continue;
        const size_t registers = accumulator.n / 2;
        memcpy(&accumulator.seen[t * registers], accumulator.registers[t],
               registers * sizeof(float));
    }
}

static void commit_for_group(void **, uint32_t) {
    Warpgroup &group = own_warpgroup();
    size_t committed = 0;
    for (const size_t size : group.group_sizes) committed += size;
    group.group_sizes.push_back(group.operations.size() - committed);
}
void wgmma_commit(Site site) {
    group_collective(first_warp_of_group(), 4, commit_for_group, nullptr, site);
}

// ---- execution ----
// Reads 8 consecutive elements: along K from (mn, k), or along MN if the operand is transposed.
static void read_chunk(uint64_t descriptor, int mn, int k, bool transposed, uint16_t *out,
                       Site site) {
    const uint32_t start = (uint32_t)(descriptor & 0x3fff) << 4;
    const uint32_t leading = (uint32_t)(descriptor >> 16 & 0x3fff) << 4;
    const uint32_t stride = (uint32_t)(descriptor >> 32 & 0x3fff) << 4;
    const unsigned layout = (unsigned)(descriptor >> 62);
    if (layout == 0) {
        fail_at("unsupported wgmma layout", site, "operands without a swizzle are not known to the "
                "CPU backend");
    }
    const int row_bytes = 256 >> layout, columns = row_bytes / 2;
    uint32_t address = transposed ? start + mn / columns * leading + k / 8 * stride +
                                        k % 8 * row_bytes + mn % columns * 2
                                  : start + mn / 8 * stride + mn % 8 * row_bytes + k * 2;
    address ^= (address >> 7 & (row_bytes / 16 - 1)) << 4;
    worker->reads_by_descriptor = true;
    const void *pointer = shared_pointer(address, site);
    if (checking()) {
        check_access(pointer, 16, AccessKind::read, site);
        check_proxy_fence(pointer, 16, site);
    }
    worker->reads_by_descriptor = false;
    memcpy(out, pointer, 16);
}

// Fills out[mn * mn_step + k * k_step].
static void read_operand(uint64_t descriptor, int size_mn, bool transposed, Element element,
                         float *out, int mn_step, int k_step, Site site) {
    uint16_t bits[8];
    for (int mn = 0; mn < size_mn; mn += transposed ? 8 : 1) {
        for (int k = 0; k < K; k += transposed ? 1 : 8) {
            read_chunk(descriptor, mn, k, transposed, bits, site);
            for (int i = 0; i < 8; i++) {
                const float value = element == Element::bf16 ? bfloat16_to_float(bits[i])
                                                             : half_to_float(bits[i]);
                const int at_mn = transposed ? mn + i : mn, at_k = transposed ? k : k + i;
                out[at_mn * mn_step + at_k * k_step] = value;
            }
        }
    }
}

static void read_register_operand(const WgmmaOperation &operation, float *out) {
    for (int t = 0; t < WARPGROUP; t++) {
        uint16_t bits[8];
        memcpy(bits, operation.a_registers[t], sizeof bits);
        const int row = t / 32 * 16 + t % 32 / 4, column = 2 * (t % 4);
        for (int i = 0; i < 8; i++) {
            const float value = operation.operands.element == Element::bf16
                                    ? bfloat16_to_float(bits[i])
                                    : half_to_float(bits[i]);
            out[(row + 8 * (i >> 1 & 1)) * K + column + (i & 1) + 8 * (i >> 2)] = value;
        }
    }
}

static void execute(Warpgroup &group, const WgmmaOperation &operation) {
    Accumulator &accumulator = group.accumulators[operation.accumulator];
    const WgmmaOperands &operands = operation.operands;
    const int n = accumulator.n;
    std::vector<float> a(M * K), b((size_t)K * n);
    if (operation.a_in_registers) {
        read_register_operand(operation, a.data());
    } else {
        read_operand(operands.a_descriptor, M, operands.a_transposed, operands.element, a.data(), K,
                     1, operation.site);
    }
    read_operand(operands.b_descriptor, n, operands.b_transposed, operands.element, b.data(), 1, n,
                 operation.site);
    for (int row = 0; row < M; row++) {
        float *sum = &accumulator.matrix[(size_t)row * n];
        if (!operands.accumulate) std::fill(sum, sum + n, 0.0f);
        for (int k = 0; k < K; k++) {
            const float factor = a[row * K + k];
            const float *b_row = &b[(size_t)k * n];
            for (int column = 0; column < n; column++) sum[column] += factor * b_row[column];
        }
    }
    if (--accumulator.pending) return;
    for (int row = 0; row < M; row++) {
        for (int column = 0; column < n; column++) {
            accumulator.registers[accumulator_thread(row, column)]
                                 [accumulator_register(row, column)] =
                accumulator.matrix[(size_t)row * n + column];
        }
    }
    if (!checking()) return;
    const size_t registers = n / 2;
    accumulator.seen.resize(WARPGROUP * registers);
    for (int t = 0; t < WARPGROUP; t++) {
        memcpy(&accumulator.seen[t * registers], accumulator.registers[t],
               registers * sizeof(float));
    }
}

static bool overlap(uintptr_t a, size_t a_bytes, uintptr_t b, size_t b_bytes) {
    return a < b + b_bytes && b < a + a_bytes;
}

void local_begins(const void *place, size_t bytes) {
    if (!worker->running_products) return;
    const unsigned t = self->linear % WARPGROUP;
    for (WgmmaOperation &operation : own_warpgroup().operations) {
        if (operation.a_in_registers &&
            overlap((uintptr_t)place, bytes, operation.a_places[t], A_BYTES)) {
            operation.a_places[t] = 0;
        }
    }
}

// Check build: before the wait for a wgmma, its accumulators must not be read or written, nor the
// registers of A be written.
void check_product_registers(uintptr_t address, size_t bytes, AccessKind kind, Place place) {
    HopperState &state = hopper();
    const size_t index = self->linear / WARPGROUP;
    if (index >= state.warpgroups.size()) return;
    Warpgroup &group = state.warpgroups[index];
    const unsigned t = self->linear % WARPGROUP;
    for (WgmmaOperation &operation : group.operations) {
        // Not necessarily an error: in an unrolled loop the next tile's array may share this
        // memory, in which case local_begins() drops the address of A.
        if (kind == AccessKind::write && operation.a_in_registers && !operation.a_written[t].number &&
            overlap(address, bytes, operation.a_places[t], A_BYTES)) {
            operation.a_written[t] = place;
        }
        const Accumulator &accumulator = group.accumulators[operation.accumulator];
        const uintptr_t begin = (uintptr_t)accumulator.registers[t];
        if (!overlap(address, bytes, begin, accumulator.n / 2 * sizeof(float))) continue;
        fail_at_two("registers of a running wgmma", place, operation.site, "%s of accumulators "
                    "that the wgmma at {other} is still to add to: nobody has waited for it "
                    "(wgmma.wait_group)", verb(kind));
    }
}

// Checks that the calling thread has not changed A of the wgmmas that it waits for.
static void check_operands_in_registers(size_t pending_groups) {
    const Warpgroup &group = own_warpgroup();
    const unsigned t = self->linear % WARPGROUP;
    size_t finished = 0;
    for (size_t i = 0; i + pending_groups < group.group_sizes.size(); i++) {
        finished += group.group_sizes[i];
    }
    for (size_t i = 0; i < finished; i++) {
        const WgmmaOperation &operation = group.operations[i];
        if (!operation.a_in_registers || !operation.a_places[t] || !operation.a_written[t].number ||
            !memcmp((const void *)operation.a_places[t], operation.a_registers[t], A_BYTES)) {
            continue;
        }
        fail_at_two("registers of a running wgmma", operation.a_written[t], operation.site, "write "
                    "of A's registers while the wgmma at {other} may still read them: nobody has "
                    "waited for it (wgmma.wait_group)");
    }
}

// One thread reads the operands for the whole warpgroup. A warp waits only for its own part of a
// product (PTX manual, wgmma.wait_group: groups "committed by the executing threads"), so only the
// reader's warp is ordered after the reads: the other warps need a barrier with it before they
// overwrite them.
static void order_warp_after_reads(Worker *w) {
    const unsigned reader = self->linear, first = reader / WARP * WARP;
    const uint32_t clock = current_clock();
    for (unsigned t = first; t < first + WARP; t++) {
        uint32_t &known = clocks_of(w, t)[reader];
        known = std::max(known, clock);
    }
    advance_clock(w, reader);
}

static void wait_for_group(void **threads, uint32_t) {
    Warpgroup &group = own_warpgroup();
    const size_t keep = (size_t)*(int *)threads[0];
    size_t finished = 0;
    while (group.group_sizes.size() > keep) {
        finished += group.group_sizes.front();
        group.group_sizes.erase(group.group_sizes.begin());
    }
    for (size_t i = 0; i < finished; i++) execute(group, group.operations[i]);
    group.operations.erase(group.operations.begin(), group.operations.begin() + finished);
    if (group.operations.empty()) worker->running_products &= ~(1u << self->linear / WARPGROUP);
    if (checking() && finished) order_warp_after_reads(worker);
}
void wgmma_wait(int pending_groups, Site site) {
    if (checking()) check_operands_in_registers((size_t)pending_groups);
    group_collective(first_warp_of_group(), 4, wait_for_group, &pending_groups, site);
    own_warpgroup().fenced_since_wait[self->linear % WARPGROUP] = false;
}

}  // namespace coh
