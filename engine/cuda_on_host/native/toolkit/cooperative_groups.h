// Cooperative groups: blocks, tiles of a warp, coalesced threads, clusters, and the grid. Tiles of
// several warps are not supported.
#pragma once

namespace cooperative_groups {

namespace details {

constexpr unsigned WARP_MASK = 0xffffffffu;

COH_INLINE unsigned lanes_before() { return (1u << coh::self->lane) - 1; }
COH_INLINE unsigned tile_mask(unsigned size) {
    return (size == 32 ? WARP_MASK : (1u << size) - 1) << (coh::self->lane & ~(size - 1));
}
COH_INLINE unsigned nth_lane(unsigned mask, unsigned rank) { return __fns(mask, 0, (int)rank + 1); }

// Moves values of any size, eight bytes at a time.
template <class Value, class Move>
COH_INLINE Value by_words(const Value &v, Move move) {
    static_assert(std::is_trivially_copyable<Value>::value, "lanes exchange plain values");
    uint64_t words[(sizeof(Value) + 7) / 8] = {};
    memcpy(words, &v, sizeof v);
    for (uint64_t &word : words) word = move(word);
    Value moved;
    memcpy((void *)&moved, words, sizeof moved);
    return moved;
}
// values[lane] of the lanes in `mask`.
template <class Value>
COH_INLINE void gather(unsigned mask, const Value &v, Value *values, coh::Site site) {
    uint64_t words[(sizeof(Value) + 7) / 8] = {}, of_lane[32];
    memcpy(words, &v, sizeof v);
    for (size_t i = 0; i < sizeof words / 8; i++) {
        coh::gather(mask, words[i], of_lane, site);
        const size_t bytes = sizeof v - 8 * i < 8 ? sizeof v - 8 * i : 8;
        for (unsigned rest = mask; rest; rest &= rest - 1) {
            const int lane = __builtin_ctz(rest);
            memcpy((char *)&values[lane] + 8 * i, &of_lane[lane], bytes);
        }
    }
}

}  // namespace details

// Lanes of one warp: base of tiles and coalesced groups.
class coalesced_group {
public:
    COH_METHOD void sync(COH_SITE) const { coh::warp_sync(mask_, site); }
    COH_METHOD unsigned long long size() const { return __popc(mask_); }
    COH_METHOD unsigned long long num_threads() const { return size(); }
    COH_METHOD unsigned long long thread_rank() const {
        return __popc(mask_ & details::lanes_before());
    }
    COH_METHOD unsigned long long meta_group_rank() const { return part_; }
    COH_METHOD unsigned long long meta_group_size() const { return parts_; }

    template <class Value>
    COH_METHOD Value shfl(Value v, int rank, COH_SITE) const {
        return from(v, (unsigned)rank % (unsigned)size(), site);
    }
    template <class Value>
    COH_METHOD Value shfl_up(Value v, int delta, COH_SITE) const {
        const int rank = (int)thread_rank() - delta;
        return from(v, rank < 0 ? (unsigned)thread_rank() : (unsigned)rank, site);
    }
    template <class Value>
    COH_METHOD Value shfl_down(Value v, int delta, COH_SITE) const {
        const unsigned rank = (unsigned)thread_rank() + (unsigned)delta;
        return from(v, rank < size() ? rank : (unsigned)thread_rank(), site);
    }
    COH_METHOD int any(int predicate, COH_SITE) const {
        return coh::ballot(mask_, predicate, site) != 0;
    }
    COH_METHOD int all(int predicate, COH_SITE) const {
        return coh::ballot(mask_, !predicate, site) == 0;
    }
    COH_METHOD unsigned ballot(int predicate, COH_SITE) const {
        return by_rank(coh::ballot(mask_, predicate, site));
    }
    template <class Value>
    COH_METHOD unsigned match_any(Value v, COH_SITE) const {
        return by_rank(__match_any_sync(mask_, v, site));
    }
    template <class Value>
    COH_METHOD unsigned match_all(Value v, int &predicate, COH_SITE) const {
        return by_rank(__match_all_sync(mask_, v, &predicate, site));
    }

    // Not part of CUDA's interface: used by the functions of this file.
    explicit coalesced_group(unsigned mask, unsigned part = 0, unsigned parts = 1)
        : mask_(mask), part_(part), parts_(parts) {}
    COH_METHOD unsigned coh_mask() const { return mask_; }

protected:
    template <class Value>
    COH_METHOD Value from(Value v, unsigned rank, coh::Site site) const {
        const int lane = (int)details::nth_lane(mask_, rank);
        return details::by_words(
            v, [&](uint64_t word) { return __shfl_sync(mask_, word, lane, 32, site); });
    }
    COH_METHOD unsigned by_rank(unsigned lanes) const {
        unsigned ranks = 0, rank = 0;
        for (unsigned rest = mask_; rest; rest &= rest - 1, rank++) {
            if (lanes & (rest & (0u - rest))) ranks |= 1u << rank;
        }
        return ranks;
    }

    unsigned mask_, part_, parts_;
};

class thread_block {
public:
    COH_METHOD static void sync(COH_SITE) { coh::barrier_sync(0, 0, site); }
    COH_METHOD static unsigned size() {
        const dim3 &dim = coh::self->block_dim;
        return dim.x * dim.y * dim.z;
    }
    COH_METHOD static unsigned num_threads() { return size(); }
    COH_METHOD static unsigned thread_rank() { return coh::self->linear; }
    COH_METHOD static dim3 group_index() { return coh::self->block_idx; }
    COH_METHOD static dim3 thread_index() { return coh::self->thread_idx; }
    COH_METHOD static dim3 group_dim() { return coh::self->block_dim; }
    COH_METHOD static dim3 dim_threads() { return coh::self->block_dim; }
};

template <unsigned int Size, class Parent = void>
class thread_block_tile : public coalesced_group {
    static_assert(Size <= 32 && (Size & (Size - 1)) == 0,
                  "the CPU backend has tiles of 1, 2, 4, 8, 16 or 32 threads");

public:
    explicit thread_block_tile(unsigned part, unsigned parts)
        : coalesced_group(details::tile_mask(Size), part, parts) {}
    template <class Other>
    thread_block_tile(const thread_block_tile<Size, Other> &tile) : coalesced_group(tile) {}
    COH_METHOD static constexpr unsigned size() { return Size; }
    COH_METHOD static constexpr unsigned num_threads() { return Size; }
    COH_METHOD static unsigned thread_rank() { return coh::self->lane & (Size - 1); }

    template <class Value>
    COH_METHOD Value shfl_xor(Value v, unsigned mask, COH_SITE) const {
        return this->from(v, (thread_rank() ^ mask) & (Size - 1), site);
    }
};

// A group whose size is known only at run time: a block, or lanes of a warp.
class thread_group {
public:
    thread_group(const thread_block &) : lanes_(0), is_block_(true) {}
    thread_group(const coalesced_group &group) : lanes_(group), is_block_(false) {}
    COH_METHOD void sync(COH_SITE) const {
        if (is_block_) thread_block::sync(site);
        else lanes_.sync(site);
    }
    COH_METHOD unsigned long long size() const {
        return is_block_ ? thread_block::size() : lanes_.size();
    }
    COH_METHOD unsigned long long num_threads() const { return size(); }
    COH_METHOD unsigned long long thread_rank() const {
        return is_block_ ? thread_block::thread_rank() : lanes_.thread_rank();
    }

private:
    coalesced_group lanes_;
    bool is_block_;
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
class cluster_group {
public:
    struct arrival_token {};

    COH_METHOD static void sync(COH_SITE) {
        coh::cluster_arrive(coh::Order::release, site);
        coh::cluster_wait(site);
    }
    COH_METHOD static arrival_token barrier_arrive(COH_SITE) {
        coh::cluster_arrive(coh::Order::release, site);
        return {};
    }
    COH_METHOD static void barrier_wait(arrival_token && = {}, COH_SITE) {
        coh::cluster_wait(site);
    }
    template <class T>
    COH_METHOD static T *map_shared_rank(T *pointer, int rank, COH_SITE) {
        return (T *)coh::cluster_pointer((const void *)pointer, (unsigned)rank, site);
    }
    COH_METHOD static unsigned query_shared_rank(const void *pointer, COH_SITE) {
        return coh::cluster_rank_of(pointer, site);
    }
    COH_METHOD static dim3 block_index() {
        const dim3 &dim = coh::self->cluster_dim;
        const uint3 &at = coh::self->block_idx;
        return {at.x % dim.x, at.y % dim.y, at.z % dim.z};
    }
    COH_METHOD static unsigned block_rank() { return coh::self->cluster_rank; }
    COH_METHOD static dim3 dim_blocks() { return coh::self->cluster_dim; }
    COH_METHOD static unsigned num_blocks() { return coh::self->cluster_size; }
    COH_METHOD static dim3 thread_index() {
        const dim3 &dim = coh::self->block_dim, block = block_index();
        const uint3 &at = coh::self->thread_idx;
        return {block.x * dim.x + at.x, block.y * dim.y + at.y, block.z * dim.z + at.z};
    }
    COH_METHOD static dim3 dim_threads() {
        const dim3 &dim = coh::self->block_dim, &blocks = coh::self->cluster_dim;
        return {blocks.x * dim.x, blocks.y * dim.y, blocks.z * dim.z};
    }
    COH_METHOD static unsigned num_threads() { return num_blocks() * thread_block::size(); }
    COH_METHOD static unsigned size() { return num_threads(); }
    COH_METHOD static unsigned thread_rank() {
        return block_rank() * thread_block::size() + thread_block::thread_rank();
    }
};
COH_INLINE cluster_group this_cluster() { return cluster_group(); }
#endif

class grid_group {
public:
    COH_METHOD static bool is_valid() { return true; }
    template <int = 0>  // a template, as only kernels that call it need all CTAs at once
    COH_METHOD void sync(COH_SITE) const {
        (void)coh::NeedsWholeGrid<>::noted;
        coh::grid_sync(site);
    }
    COH_METHOD static unsigned long long num_blocks() {
        const dim3 &dim = coh::self->grid_dim;
        return (unsigned long long)dim.x * dim.y * dim.z;
    }
    COH_METHOD static unsigned long long block_rank() {
        const dim3 &dim = coh::self->grid_dim;
        const uint3 &at = coh::self->block_idx;
        return ((unsigned long long)at.z * dim.y + at.y) * dim.x + at.x;
    }
    COH_METHOD static dim3 dim_blocks() { return coh::self->grid_dim; }
    COH_METHOD static dim3 group_dim() { return coh::self->grid_dim; }
    COH_METHOD static dim3 block_index() { return coh::self->block_idx; }
    COH_METHOD static unsigned long long num_threads() { return num_blocks() * thread_block::size(); }
    COH_METHOD static unsigned long long size() { return num_threads(); }
    COH_METHOD static unsigned long long thread_rank() {
        return block_rank() * thread_block::size() + thread_block::thread_rank();
    }
};

// ---- making groups ----
COH_INLINE thread_block this_thread_block() { return thread_block(); }
COH_INLINE grid_group this_grid() { return grid_group(); }
COH_INLINE coalesced_group coalesced_threads(COH_SITE) {
    return coalesced_group(coh::active_lanes(site));
}
template <unsigned int Size, class Parent>
COH_INLINE thread_block_tile<Size, Parent> tiled_partition(const Parent &parent) {
    const unsigned parts = ((unsigned)parent.size() + Size - 1) / Size;
    return thread_block_tile<Size, Parent>((unsigned)parent.thread_rank() / Size, parts);
}
COH_INLINE thread_group tiled_partition(const thread_group &parent, unsigned size) {
    const unsigned parts = ((unsigned)parent.size() + size - 1) / size;
    return coalesced_group(details::tile_mask(size), (unsigned)parent.thread_rank() / size, parts);
}
template <class Label>
COH_INLINE coalesced_group labeled_partition(const coalesced_group &group, Label label, COH_SITE) {
    return coalesced_group(__match_any_sync(group.coh_mask(), label, site));
}
COH_INLINE coalesced_group binary_partition(const coalesced_group &group, bool predicate,
                                            COH_SITE) {
    return labeled_partition(group, (int)predicate, site);
}

// ---- of any group ----
template <class Group>
COH_INLINE void sync(const Group &group, COH_SITE) {
    group.sync(site);
}
template <class Group>
COH_INLINE unsigned long long thread_rank(const Group &group) {
    return group.thread_rank();
}
template <class Group>
COH_INLINE unsigned long long group_size(const Group &group) {
    return group.size();
}
template <class Group, class Function, class... Args>
COH_INLINE void invoke_one(const Group &group, Function &&function, Args &&...args) {
    if (group.thread_rank() == 0) function(args...);
}
template <class Group, class Function, class... Args>
COH_INLINE auto invoke_one_broadcast(const Group &group, Function &&function, Args &&...args) {
    decltype(function(args...)) result{};
    if (group.thread_rank() == 0) result = function(args...);
    return group.shfl(result, 0);
}

}  // namespace cooperative_groups
