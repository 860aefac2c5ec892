// Atomics under their CUDA names.
#pragma once

#define COH_SITE coh::Site site = coh::Site::here()

namespace coh {

// Replaces *address by next(*address, value) and returns the old value; T is 2, 4 or 8 bytes wide.
template <class T, class Next>
COH_INLINE T atomic(void *address, T value, Next, Site site, Order order = Order::relaxed,
                    Scope scope = Scope::gpu) {
    const NextValue next = [](uint64_t old_bits, const void *operand) -> uint64_t {
        T old, v;
        memcpy(&old, &old_bits, sizeof old);
        memcpy(&v, operand, sizeof v);
        const T replaced = Next{}(old, v);
        uint64_t bits = 0;
        memcpy(&bits, &replaced, sizeof replaced);
        return bits;
    };
    const uint64_t bits = atomic_update(address, sizeof(T), next, &value, site, order, scope);
    T old;
    memcpy(&old, &bits, sizeof old);
    return old;
}
template <class T>
COH_INLINE T atomic_cas(void *address, T expected, T desired, Site site,
                        Order order = Order::relaxed, Scope scope = Scope::gpu) {
    struct Both {
        T expected, desired;
    };
    const NextValue next = [](uint64_t old, const void *operand) -> uint64_t {
        const Both *both = (const Both *)operand;
        return (T)old == both->expected ? (uint64_t)both->desired : old;
    };
    const Both both{expected, desired};
    return (T)atomic_update(address, sizeof(T), next, &both, site, order, scope);
}

struct AtomicAdd {
    template <class T>
    T operator()(T old, T v) const { return old + v; }
};
struct AtomicSubtract {
    template <class T>
    T operator()(T old, T v) const { return old - v; }
};
struct AtomicExchange {
    template <class T>
    T operator()(T, T v) const { return v; }
};
struct AtomicMin {
    template <class T>
    T operator()(T old, T v) const { return v < old ? v : old; }
};
struct AtomicMax {
    template <class T>
    T operator()(T old, T v) const { return old < v ? v : old; }
};
struct AtomicAnd {
    template <class T>
    T operator()(T old, T v) const { return old & v; }
};
struct AtomicOr {
    template <class T>
    T operator()(T old, T v) const { return old | v; }
};
struct AtomicXor {
    template <class T>
    T operator()(T old, T v) const { return old ^ v; }
};
struct AtomicInc {  // wraps to 0 at the limit
    template <class T>
    T operator()(T old, T limit) const { return old >= limit ? T(0) : T(old + 1); }
};
struct AtomicDec {  // wraps to the limit at 0
    template <class T>
    T operator()(T old, T limit) const { return old == 0 || old > limit ? limit : T(old - 1); }
};

}  // namespace coh

// atomicX, atomicX_block and atomicX_system.
#define COH_ATOMIC(NAME, TYPE, OPERATION)                                                \
    COH_ATOMIC_SCOPED(NAME, TYPE, OPERATION, gpu)                                        \
    COH_ATOMIC_SCOPED(NAME##_block, TYPE, OPERATION, cta)                                \
    COH_ATOMIC_SCOPED(NAME##_system, TYPE, OPERATION, gpu)
#define COH_ATOMIC_SCOPED(NAME, TYPE, OPERATION, SCOPE)                                  \
    COH_INLINE TYPE NAME(TYPE *p, TYPE v, COH_SITE) {                                    \
        return coh::atomic(p, v, coh::OPERATION(), site, coh::Order::relaxed,            \
                           coh::Scope::SCOPE);                                           \
    }
#define COH_ATOMIC_INTEGER(NAME, OPERATION)                                              \
    COH_ATOMIC(NAME, int, OPERATION)                                                     \
    COH_ATOMIC(NAME, unsigned, OPERATION)                                                \
    COH_ATOMIC(NAME, unsigned long long, OPERATION)
COH_ATOMIC_INTEGER(atomicAdd, AtomicAdd)
COH_ATOMIC_INTEGER(atomicExch, AtomicExchange)
COH_ATOMIC_INTEGER(atomicMin, AtomicMin)
COH_ATOMIC_INTEGER(atomicMax, AtomicMax)
COH_ATOMIC_INTEGER(atomicAnd, AtomicAnd)
COH_ATOMIC_INTEGER(atomicOr, AtomicOr)
COH_ATOMIC_INTEGER(atomicXor, AtomicXor)
COH_ATOMIC(atomicMin, long long, AtomicMin)
COH_ATOMIC(atomicMax, long long, AtomicMax)
COH_ATOMIC(atomicAdd, float, AtomicAdd)
COH_ATOMIC(atomicAdd, double, AtomicAdd)
COH_ATOMIC(atomicExch, float, AtomicExchange)
COH_ATOMIC(atomicInc, unsigned, AtomicInc)
COH_ATOMIC(atomicDec, unsigned, AtomicDec)
COH_ATOMIC(atomicSub, int, AtomicSubtract)
COH_ATOMIC(atomicSub, unsigned, AtomicSubtract)
#undef COH_ATOMIC_INTEGER
#undef COH_ATOMIC_SCOPED
#undef COH_ATOMIC

#define COH_ATOMIC_CAS(TYPE)                                                             \
    COH_ATOMIC_CAS_SCOPED(atomicCAS, TYPE, gpu)                                          \
    COH_ATOMIC_CAS_SCOPED(atomicCAS_block, TYPE, cta)                                    \
    COH_ATOMIC_CAS_SCOPED(atomicCAS_system, TYPE, gpu)
#define COH_ATOMIC_CAS_SCOPED(NAME, TYPE, SCOPE)                                         \
    COH_INLINE TYPE NAME(TYPE *p, TYPE expected, TYPE desired, COH_SITE) {               \
        return coh::atomic_cas(p, expected, desired, site, coh::Order::relaxed,          \
                               coh::Scope::SCOPE);                                       \
    }
COH_ATOMIC_CAS(int)
COH_ATOMIC_CAS(unsigned)
COH_ATOMIC_CAS(unsigned short)
COH_ATOMIC_CAS(unsigned long long)
#undef COH_ATOMIC_CAS_SCOPED
#undef COH_ATOMIC_CAS

// The elements of a vector are added one by one, as on sm_90.
COH_INLINE float2 atomicAdd(float2 *p, float2 v, COH_SITE) {
    return {atomicAdd(&p->x, v.x, site), atomicAdd(&p->y, v.y, site)};
}
COH_INLINE float4 atomicAdd(float4 *p, float4 v, COH_SITE) {
    return {atomicAdd(&p->x, v.x, site), atomicAdd(&p->y, v.y, site),
            atomicAdd(&p->z, v.z, site), atomicAdd(&p->w, v.w, site)};
}
