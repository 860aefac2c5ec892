// Addresses, loads, stores and warp operations of inline PTX.
#pragma once

namespace coh {
namespace ptx {

// ---- addresses: an offset in the shared window, or a generic pointer (the same as a global one) ----
COH_INLINE char *shared(uint64_t address, Site site) { return (char *)shared_pointer(address, site); }
COH_INLINE char *cluster(uint64_t address, Site site) { return (char *)cluster_memory(address, site); }
COH_INLINE char *generic(uint64_t address, Site) { return (char *)address; }
COH_INLINE bool is_in_shared_memory(uint64_t address) {
    return address - (uint64_t)self->static_smem < SHARED_WINDOW_BYTES;
}

// ---- loads and stores: one access of the whole vector ----
template <class T, int N>
COH_INLINE void load(T (&to)[N], const void *from) {
    struct alignas(N * sizeof(T)) Vector {
        T at[N];
    };
    const Vector vector = *(const Vector *)from;
    for (int i = 0; i < N; i++) to[i] = vector.at[i];
}
template <class T, int N>
COH_INLINE void store(void *to, const T (&values)[N]) {
    struct alignas(N * sizeof(T)) Vector {
        T at[N];
    } vector;
    for (int i = 0; i < N; i++) vector.at[i] = values[i];
    *(Vector *)to = vector;
}
// .volatile: the compiler keeps every access, and a polling thread lets the others run.
template <class T, int N>
COH_INLINE void load_volatile(T (&to)[N], const void *from) {
    yield();
    __asm__ volatile("" ::: "memory");
    load(to, from);
}
template <class T, int N>
COH_INLINE void store_volatile(void *to, const T (&values)[N]) {
    store(to, values);
    __asm__ volatile("" ::: "memory");
}
// .relaxed, .acquire, .release
template <class T, int N>
COH_INLINE void load_strong(T (&to)[N], const void *from, Order order, Scope scope, Site site) {
    for (int i = 0; i < N; i++) {
        const uint64_t bits = atomic_load((const char *)from + i * sizeof(T), sizeof(T), site,
                                          order, scope);
        to[i] = coh_bit_cast<T>((typename BitsOf<sizeof(T)>::type)bits);
    }
}
template <class T, int N>
COH_INLINE void store_strong(void *to, const T (&values)[N], Order order, Scope scope, Site site) {
    for (int i = 0; i < N; i++) {
        const uint64_t bits = coh_bit_cast<typename BitsOf<sizeof(T)>::type>(values[i]);
        atomic_store((char *)to + i * sizeof(T), bits, sizeof(T), site, order, scope);
    }
}

// Semantics and scope from an instruction's modifiers; the defaults are .relaxed and .gpu for
// atomics, .acq_rel for fences.
constexpr bool same_word(const char *a, const char *b) {
    return *a == *b && (*a == 0 || same_word(a + 1, b + 1));
}
constexpr Order order_of(const char *word) {
    return same_word(word, "acquire")                             ? Order::acquire
           : same_word(word, "release")                           ? Order::release
           : same_word(word, "acq_rel") || same_word(word, "sc") ? Order::acq_rel
                                                                  : Order::relaxed;
}
constexpr Order fence_order_of(const char *word) {
    return *word ? order_of(word) : Order::acq_rel;
}
constexpr Order cluster_order_of(const char *word) {
    return same_word(word, "relaxed") ? Order::relaxed : Order::release;
}
constexpr Scope scope_of(const char *word) {
    return same_word(word, "cta") ? Scope::cta : Scope::gpu;
}
struct AtomicSum {
    template <class T>
    T operator()(T old, T v) const { return add(old, v); }
};

// ---- warp ----
COH_INLINE uint32_t shuffle_lanes(Shuffle mode, uint32_t v, uint32_t b, uint32_t c, uint32_t mask,
                                  bool &in_range, Site site) {
    const int lane = (int)self->lane, by = b & 31, segment = c >> 8 & 31;
    const int least = lane & segment, limit = least | ((int)c & 31 & ~segment);
    int source = least | (by & ~segment);
    if (mode == Shuffle::up) source = lane - by;
    if (mode == Shuffle::down) source = lane + by;
    if (mode == Shuffle::bfly) source = lane ^ by;
    in_range = mode == Shuffle::up ? source >= limit : source <= limit;
    return (uint32_t)shuffle(mode, mask, v, in_range ? source : lane, site);
}
template <class F, class T>
COH_INLINE T reduce_lanes(uint32_t mask, T v, F f, Site site) {  // redux
    uint64_t values[32];
    const uint32_t present = gather(mask, (uint64_t)v, values, site);
    T result = (T)values[__builtin_ctz(present)];
    for (uint32_t rest = present & (present - 1); rest; rest &= rest - 1) {
        result = f(result, (T)values[__builtin_ctz(rest)]);
    }
    return result;
}
template <class T>
COH_INLINE uint32_t match_any(uint32_t mask, T v, Site site) {
    uint64_t values[32];
    const uint32_t present = gather(mask, (uint64_t)v, values, site);
    uint32_t same = 0;
    for (uint32_t rest = present; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        if ((T)values[lane] == v) same |= 1u << lane;
    }
    return same;
}
template <class T>
COH_INLINE uint32_t match_all(uint32_t mask, T v, bool &all, Site site) {
    uint64_t values[32];
    const uint32_t present = gather(mask, (uint64_t)v, values, site);
    all = true;
    for (uint32_t rest = present; rest; rest &= rest - 1) {
        all = all && (T)values[__builtin_ctz(rest)] == v;
    }
    return all ? present : 0;
}
COH_INLINE uint32_t elect(uint32_t mask, bool &elected, Site site) {  // the lowest lane
    const uint32_t leader = __builtin_ctz(ballot(mask, 1, site));
    elected = self->lane == leader;
    return leader;
}
COH_INLINE uint64_t clock_ticks() {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

}  // namespace ptx
}  // namespace coh
