// Atomics: executed one at a time, after the check build has recorded them.
namespace coh {

template <class Word>
static uint64_t update(Word *p, NextValue next, const void *operand) {
    Word old = __atomic_load_n(p, __ATOMIC_SEQ_CST);
    while (!__atomic_compare_exchange_n(p, &old, (Word)next(old, operand), false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST)) {
    }
    return old;
}

uint64_t atomic_update(void *address, unsigned bytes, NextValue next, const void *operand,
                       Site site, Order order, Scope scope) {
    const auto lock = order_by_atomic(address, bytes, AccessKind::atomic, order, scope, site);
    const Touching touching(site);
    switch (bytes) {
        case 2: return update((uint16_t *)address, next, operand);
        case 4: return update((uint32_t *)address, next, operand);
        default: return update((uint64_t *)address, next, operand);
    }
}

uint64_t atomic_load(const void *address, unsigned bytes, Site site, Order order, Scope scope) {
    yield();  // a polling thread lets the others run
    const auto lock = order_by_atomic(address, bytes, AccessKind::atomic_read, order, scope, site);
    const Touching touching(site);
    switch (bytes) {
        case 1: return __atomic_load_n((const uint8_t *)address, __ATOMIC_SEQ_CST);
        case 2: return __atomic_load_n((const uint16_t *)address, __ATOMIC_SEQ_CST);
        case 4: return __atomic_load_n((const uint32_t *)address, __ATOMIC_SEQ_CST);
        default: return __atomic_load_n((const uint64_t *)address, __ATOMIC_SEQ_CST);
    }
}

void atomic_store(void *address, uint64_t value, unsigned bytes, Site site, Order order,
                  Scope scope) {
    const auto lock = order_by_atomic(address, bytes, AccessKind::atomic_write, order, scope, site);
    const Touching touching(site);
    switch (bytes) {
        case 1: return __atomic_store_n((uint8_t *)address, (uint8_t)value, __ATOMIC_SEQ_CST);
        case 2: return __atomic_store_n((uint16_t *)address, (uint16_t)value, __ATOMIC_SEQ_CST);
        case 4: return __atomic_store_n((uint32_t *)address, (uint32_t)value, __ATOMIC_SEQ_CST);
        default: return __atomic_store_n((uint64_t *)address, value, __ATOMIC_SEQ_CST);
    }
}

}  // namespace coh
