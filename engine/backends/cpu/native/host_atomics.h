// Atomics under their CUDA names.
#pragma once

COH_INLINE float atomicAdd(float *p, float v, COH_SITE) {
    return coh::atomic_add_float(p, v, site);
}
COH_INLINE unsigned long long atomicAdd(unsigned long long *p, unsigned long long v, COH_SITE) {
    return coh::atomic_add_64(p, v, site);
}
COH_INLINE unsigned long long atomicCAS(unsigned long long *p, unsigned long long expected,
                                        unsigned long long desired, COH_SITE) {
    return coh::atomic_cas_64(p, expected, desired, site);
}

#define COH_ATOMIC(NAME, TYPE, OP)                                                       \
    COH_INLINE TYPE NAME(TYPE *p, TYPE v, COH_SITE) {                                    \
        return (TYPE)coh::atomic_32(coh::AtomicOp::OP, p, (uint32_t)v, site);            \
    }
COH_ATOMIC(atomicAdd, int, add)
COH_ATOMIC(atomicAdd, unsigned, add)
COH_ATOMIC(atomicExch, int, exchange)
COH_ATOMIC(atomicExch, unsigned, exchange)
COH_ATOMIC(atomicMin, int, min_signed)
COH_ATOMIC(atomicMax, int, max_signed)
COH_ATOMIC(atomicMin, unsigned, min_unsigned)
COH_ATOMIC(atomicMax, unsigned, max_unsigned)
COH_ATOMIC(atomicAnd, int, bit_and)
COH_ATOMIC(atomicAnd, unsigned, bit_and)
COH_ATOMIC(atomicOr, int, bit_or)
COH_ATOMIC(atomicOr, unsigned, bit_or)
#undef COH_ATOMIC

COH_INLINE int atomicSub(int *p, int v, COH_SITE) { return atomicAdd(p, -v, site); }
COH_INLINE unsigned atomicSub(unsigned *p, unsigned v, COH_SITE) {
    return atomicAdd(p, 0u - v, site);
}
COH_INLINE int atomicCAS(int *p, int expected, int desired, COH_SITE) {
    return (int)coh::atomic_cas_32(p, (uint32_t)expected, (uint32_t)desired, site);
}
COH_INLINE unsigned atomicCAS(unsigned *p, unsigned expected, unsigned desired, COH_SITE) {
    return coh::atomic_cas_32(p, expected, desired, site);
}
// Wraps to 0 at the limit.
COH_INLINE unsigned atomicInc(unsigned *p, unsigned limit, COH_SITE) {
    for (unsigned old = *(volatile unsigned *)p;;) {
        const unsigned seen = atomicCAS(p, old, old >= limit ? 0u : old + 1, site);
        if (seen == old) return old;
        old = seen;
    }
}
