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
static void order_by_atomic(const void *address, size_t bytes, AccessKind kind, Site site) {
    Worker *w = worker;
    if ((uintptr_t)address % bytes) {
        fail_at("misaligned address", site, "atomic on %zu bytes at %p", bytes, address);
    }
    if (!w->settings->check) return;
    check_access(address, bytes, kind, site);
    const uintptr_t key = (uintptr_t)address;
    if (key - (uintptr_t)w->window < WINDOW_BYTES) return;
    w->atomic_addresses.insert(key);
    std::lock_guard<std::mutex> lock(published_mutex);
    auto &here = published[key];
    for (const auto &[cta, epoch] : here) raise_to(w->acquired, cta, epoch);
    if (w->fenced && kind != AccessKind::atomic_read) {
        raise_to(here, w->cta, w->release_epoch++);
        for (const auto &[cta, epoch] : w->acquired) raise_to(here, cta, epoch);
    }
}

void thread_fence() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    worker->fenced = true;
}

template <class Word>
static uint64_t update(Word *p, NextValue next, const void *operand) {
    Word old = __atomic_load_n(p, __ATOMIC_SEQ_CST);
    while (!__atomic_compare_exchange_n(p, &old, (Word)next(old, operand), false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST)) {
    }
    return old;
}

uint64_t atomic_update(void *address, unsigned bytes, NextValue next, const void *operand,
                       Site site) {
    order_by_atomic(address, bytes, AccessKind::atomic, site);
    const Touching touching(site);
    switch (bytes) {
        case 2: return update((uint16_t *)address, next, operand);
        case 4: return update((uint32_t *)address, next, operand);
        default: return update((uint64_t *)address, next, operand);
    }
}

uint64_t atomic_load(const void *address, unsigned bytes, Site site) {
    yield();  // a thread that polls lets the others run
    order_by_atomic(address, bytes, AccessKind::atomic_read, site);
    const Touching touching(site);
    switch (bytes) {
        case 1: return __atomic_load_n((const uint8_t *)address, __ATOMIC_SEQ_CST);
        case 2: return __atomic_load_n((const uint16_t *)address, __ATOMIC_SEQ_CST);
        case 4: return __atomic_load_n((const uint32_t *)address, __ATOMIC_SEQ_CST);
        default: return __atomic_load_n((const uint64_t *)address, __ATOMIC_SEQ_CST);
    }
}

void atomic_store(void *address, uint64_t value, unsigned bytes, bool release, Site site) {
    if (release) thread_fence();
    order_by_atomic(address, bytes, AccessKind::atomic_write, site);
    const Touching touching(site);
    switch (bytes) {
        case 1: return __atomic_store_n((uint8_t *)address, (uint8_t)value, __ATOMIC_SEQ_CST);
        case 2: return __atomic_store_n((uint16_t *)address, (uint16_t)value, __ATOMIC_SEQ_CST);
        case 4: return __atomic_store_n((uint32_t *)address, (uint32_t)value, __ATOMIC_SEQ_CST);
        default: return __atomic_store_n((uint64_t *)address, value, __ATOMIC_SEQ_CST);
    }
}

}  // namespace coh
