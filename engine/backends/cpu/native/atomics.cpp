// Atomics, which are also how CTAs of one launch order their work.
//
// A CTA that executed __threadfence() publishes its writes with every later global atomic; a CTA
// that touches the same address afterwards may read them. The check build follows that.
namespace coh {

static std::mutex published_mutex;
// address -> CTA -> the CTA's release epoch that a visitor of the address may read up to
static std::unordered_map<uintptr_t, std::unordered_map<uint32_t, uint32_t>> published;

static void forget_published() {
    std::lock_guard<std::mutex> lock(published_mutex);
    published.clear();
}

static void raise_to(std::unordered_map<uint32_t, uint32_t> &epochs, uint32_t cta,
                     uint32_t epoch) {
    uint32_t &known = epochs[cta];
    known = std::max(known, epoch);
}

// Also holds the checks of the access itself.
static void order_by_atomic(void *address, size_t bytes, Site site) {
    Worker *w = worker;
    if (!w->settings->check) return;
    check_access(address, bytes, AccessKind::atomic, site);
    const uintptr_t key = (uintptr_t)address;
    if (key - (uintptr_t)w->window < WINDOW_BYTES) return;
    w->atomic_addresses.insert(key);
    std::lock_guard<std::mutex> lock(published_mutex);
    auto &here = published[key];
    for (const auto &[cta, epoch] : here) raise_to(w->acquired, cta, epoch);
    if (w->fenced) {
        raise_to(here, w->cta, w->release_epoch++);
        for (const auto &[cta, epoch] : w->acquired) raise_to(here, cta, epoch);
    }
}

void thread_fence() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    worker->fenced = true;
}

static void require_alignment(const void *address, size_t bytes, Site site) {
    if ((uintptr_t)address % bytes) {
        fail_at("misaligned address", site, "atomic on %zu bytes at %p", bytes, address);
    }
}

uint32_t atomic_32(AtomicOp op, void *address, uint32_t value, Site site) {
    require_alignment(address, 4, site);
    order_by_atomic(address, 4, site);
    const Touching touching(site);
    uint32_t *p = (uint32_t *)address;
    switch (op) {
        case AtomicOp::add: return __atomic_fetch_add(p, value, __ATOMIC_SEQ_CST);
        case AtomicOp::exchange: return __atomic_exchange_n(p, value, __ATOMIC_SEQ_CST);
        case AtomicOp::bit_and: return __atomic_fetch_and(p, value, __ATOMIC_SEQ_CST);
        case AtomicOp::bit_or: return __atomic_fetch_or(p, value, __ATOMIC_SEQ_CST);
        default: break;
    }
    uint32_t old = __atomic_load_n(p, __ATOMIC_SEQ_CST);
    for (;;) {
        bool better = false;
        switch (op) {
            case AtomicOp::min_signed: better = (int32_t)value < (int32_t)old; break;
            case AtomicOp::max_signed: better = (int32_t)value > (int32_t)old; break;
            case AtomicOp::min_unsigned: better = value < old; break;
            default: better = value > old; break;
        }
        if (!better || __atomic_compare_exchange_n(p, &old, value, false, __ATOMIC_SEQ_CST,
                                                   __ATOMIC_SEQ_CST)) {
            return old;
        }
    }
}

uint64_t atomic_add_64(void *address, uint64_t value, Site site) {
    require_alignment(address, 8, site);
    order_by_atomic(address, 8, site);
    const Touching touching(site);
    return __atomic_fetch_add((uint64_t *)address, value, __ATOMIC_SEQ_CST);
}

float atomic_add_float(float *address, float value, Site site) {
    require_alignment(address, 4, site);
    order_by_atomic(address, 4, site);
    const Touching touching(site);
    uint32_t *p = (uint32_t *)address;
    uint32_t old = __atomic_load_n(p, __ATOMIC_SEQ_CST), sum_bits;
    float old_value;
    do {
        memcpy(&old_value, &old, 4);
        const float sum = old_value + value;
        memcpy(&sum_bits, &sum, 4);
    } while (!__atomic_compare_exchange_n(p, &old, sum_bits, false, __ATOMIC_SEQ_CST,
                                          __ATOMIC_SEQ_CST));
    return old_value;
}

template <class Word>
static Word compare_and_swap(void *address, Word expected, Word desired, Site site) {
    require_alignment(address, sizeof(Word), site);
    order_by_atomic(address, sizeof(Word), site);
    const Touching touching(site);
    __atomic_compare_exchange_n((Word *)address, &expected, desired, false, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
    return expected;  // what was there
}
uint32_t atomic_cas_32(void *address, uint32_t expected, uint32_t desired, Site site) {
    return compare_and_swap(address, expected, desired, site);
}
uint64_t atomic_cas_64(void *address, uint64_t expected, uint64_t desired, Site site) {
    return compare_and_swap(address, expected, desired, site);
}

}  // namespace coh
