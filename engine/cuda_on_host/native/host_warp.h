// Barriers, shuffles, votes and fences under their CUDA names.
#pragma once

COH_INLINE void __syncthreads(COH_SITE) { coh::barrier_sync(0, 0, site); }
COH_INLINE int __syncthreads_count(int predicate, COH_SITE) {
    return coh::barrier_reduce(predicate, coh::Reduction::count, site);
}
COH_INLINE int __syncthreads_and(int predicate, COH_SITE) {
    return coh::barrier_reduce(predicate, coh::Reduction::all, site);
}
COH_INLINE int __syncthreads_or(int predicate, COH_SITE) {
    return coh::barrier_reduce(predicate, coh::Reduction::any, site);
}
COH_INLINE void __syncwarp(uint32_t mask = 0xffffffffu, COH_SITE) { coh::warp_sync(mask, site); }

#if defined(COH_CUDA_ARCH) && COH_CUDA_ARCH >= 900
COH_INLINE void __cluster_barrier_arrive(COH_SITE) {
    coh::cluster_arrive(coh::Order::release, site);
}
COH_INLINE void __cluster_barrier_arrive_relaxed(COH_SITE) {
    coh::cluster_arrive(coh::Order::relaxed, site);
}
COH_INLINE void __cluster_barrier_wait(COH_SITE) { coh::cluster_wait(site); }
COH_INLINE void *__cluster_map_shared_rank(const void *pointer, unsigned rank, COH_SITE) {
    return coh::cluster_pointer(pointer, rank, site);
}
COH_INLINE unsigned __cluster_query_shared_rank(const void *pointer, COH_SITE) {
    return coh::cluster_rank_of(pointer, site);
}
COH_INLINE dim3 __clusterDim() { return coh::self->cluster_dim; }
COH_INLINE unsigned __clusterSizeInBlocks() { return coh::self->cluster_size; }
COH_INLINE unsigned __clusterRelativeBlockRank() { return coh::self->cluster_rank; }
COH_INLINE dim3 __clusterRelativeBlockIdx() {
    const dim3 &dim = coh::self->cluster_dim;
    const uint3 &at = coh::self->block_idx;
    return {at.x % dim.x, at.y % dim.y, at.z % dim.z};
}
COH_INLINE dim3 __clusterIdx() {
    const dim3 &dim = coh::self->cluster_dim;
    const uint3 &at = coh::self->block_idx;
    return {at.x / dim.x, at.y / dim.y, at.z / dim.z};
}
#endif

namespace coh {

template <class T>
COH_INLINE T shuffle_as(Shuffle mode, uint32_t mask, T v, int source, Site site) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 64 bits");
    uint64_t bits = 0;
    memcpy(&bits, &v, sizeof v);
    bits = shuffle(mode, mask, bits, source, site);
    memcpy(&v, &bits, sizeof v);
    return v;
}

// The source lane within segments of `width` lanes; the own lane if the source is outside its
// segment.
COH_INLINE int lane_xor(int lane_mask, int width) {
    const int lane = (int)self->lane, source = lane ^ lane_mask;
    return (source & ~(width - 1)) > (lane & ~(width - 1)) ? lane : source;
}
COH_INLINE int lane_index(int index, int width) {
    return ((int)self->lane & ~(width - 1)) | (index & (width - 1));
}
COH_INLINE int lane_up(unsigned delta, int width) {
    const int lane = (int)self->lane, source = lane - (int)delta;
    return source < (lane & ~(width - 1)) ? lane : source;
}
COH_INLINE int lane_down(unsigned delta, int width) {
    const int lane = (int)self->lane, source = lane + (int)delta;
    return source > (lane | (width - 1)) ? lane : source;
}

}  // namespace coh

template <class T>
COH_INLINE T __shfl_xor_sync(uint32_t mask, T v, int lane_mask, int width = 32, COH_SITE) {
    return coh::shuffle_as(coh::Shuffle::bfly, mask, v, coh::lane_xor(lane_mask, width), site);
}
template <class T>
COH_INLINE T __shfl_sync(uint32_t mask, T v, int index, int width = 32, COH_SITE) {
    return coh::shuffle_as(coh::Shuffle::idx, mask, v, coh::lane_index(index, width), site);
}
template <class T>
COH_INLINE T __shfl_up_sync(uint32_t mask, T v, unsigned delta, int width = 32, COH_SITE) {
    return coh::shuffle_as(coh::Shuffle::up, mask, v, coh::lane_up(delta, width), site);
}
template <class T>
COH_INLINE T __shfl_down_sync(uint32_t mask, T v, unsigned delta, int width = 32, COH_SITE) {
    return coh::shuffle_as(coh::Shuffle::down, mask, v, coh::lane_down(delta, width), site);
}

COH_INLINE unsigned __ballot_sync(uint32_t mask, int predicate, COH_SITE) {
    return coh::ballot(mask, predicate, site);
}
COH_INLINE int __any_sync(uint32_t mask, int predicate, COH_SITE) {
    return coh::ballot(mask, predicate, site) != 0;
}
COH_INLINE int __all_sync(uint32_t mask, int predicate, COH_SITE) {
    return coh::ballot(mask, !predicate, site) == 0;
}
COH_INLINE unsigned __activemask(COH_SITE) { return coh::active_lanes(site); }


#define COH_REDUCE(NAME, TYPE, EXPRESSION)                                               \
    COH_INLINE TYPE __reduce_##NAME##_sync(uint32_t mask, TYPE v, COH_SITE) {            \
        return coh::ptx::reduce_lanes(                                                   \
            mask, v, [](TYPE a, TYPE b) { return (TYPE)(EXPRESSION); }, site);           \
    }
COH_REDUCE(add, unsigned, a + b)
COH_REDUCE(add, int, (unsigned)a + (unsigned)b)
COH_REDUCE(min, unsigned, a < b ? a : b)
COH_REDUCE(min, int, a < b ? a : b)
COH_REDUCE(max, unsigned, a < b ? b : a)
COH_REDUCE(max, int, a < b ? b : a)
COH_REDUCE(and, unsigned, a & b)
COH_REDUCE(or, unsigned, a | b)
COH_REDUCE(xor, unsigned, a ^ b)
#undef COH_REDUCE

template <class T>
COH_INLINE unsigned __match_any_sync(uint32_t mask, T v, COH_SITE) {
    using Bits = typename coh::ptx::BitsOf<sizeof(T)>::type;
    return coh::ptx::match_any(mask, coh_bit_cast<Bits>(v), site);
}
template <class T>
COH_INLINE unsigned __match_all_sync(uint32_t mask, T v, int *predicate, COH_SITE) {
    using Bits = typename coh::ptx::BitsOf<sizeof(T)>::type;
    bool all;
    const unsigned lanes = coh::ptx::match_all(mask, coh_bit_cast<Bits>(v), all, site);
    *predicate = all;
    return lanes;
}

COH_INLINE void __threadfence() { coh::thread_fence(); }
COH_INLINE void __threadfence_system() { coh::thread_fence(); }
COH_INLINE void __threadfence_block() { coh::thread_fence(coh::Scope::cta); }
COH_INLINE void __nanosleep(unsigned) { coh::yield(); }
COH_INLINE void __trap(COH_SITE) { coh::fail("trap", site, "__trap() executed"); }
COH_INLINE void __brkpt(COH_SITE) { coh::fail("trap", site, "__brkpt() executed"); }
COH_INLINE long long clock64() { return (long long)coh::ptx::clock_ticks(); }
COH_INLINE unsigned long long __globaltimer() { return coh::ptx::clock_ticks(); }

namespace coh {
COH_INLINE void assert_that(bool condition, const char *text, COH_SITE) {
    if (!condition) fail("assertion failed", site, "assert(%s) does not hold", text);
}
}  // namespace coh
#undef assert  // the C library's assert would end the process
#define assert(condition) coh::assert_that((bool)(condition), #condition)
