// TMA: tiles between global and shared memory, with the hardware's swizzle and zero fill.
namespace coh {

static const TensorMapOnHost &read_map(const void *map, int rank, Site site) {
    const TensorMapOnHost &found = *(const TensorMapOnHost *)map;
    if (found.magic != TENSOR_MAP_MAGIC) {
        fail_at("bad tensor map", site, "the argument is no tensor map of the CPU backend");
    }
    if ((int)found.rank != rank) {
        fail_at("bad tensor map", site, "a map of rank %u is used with %d coordinates", found.rank,
                rank);
    }
    const unsigned row_bytes = found.box[0] * found.element_bytes;
    if (row_bytes % 16) {
        fail_at("bad tensor map", site, "the box's rows of %u bytes are not a multiple of 16",
                row_bytes);
    }
    if (found.swizzle && row_bytes > 16u << found.swizzle) {
        fail_at("bad tensor map", site, "the box's rows of %u bytes exceed the %u-byte swizzle",
                row_bytes, 16u << found.swizzle);
    }
    return found;
}

static long long tile_bytes(const TensorMapOnHost &map) {
    long long bytes = map.element_bytes;
    for (unsigned i = 0; i < map.rank; i++) bytes *= map.box[i];
    return bytes;
}

// Contiguous bytes are a tensor with one row of 16-byte elements.
static TensorMapOnHost map_of_bytes(const void *global, uint32_t bytes, Site site) {
    if (bytes % 16 || (uintptr_t)global % 16) {
        fail_at("misaligned address", site, "cp.async.bulk of %u bytes at %p: both need to be a "
                "multiple of 16", bytes, global);
    }
    TensorMapOnHost map{};
    map.base = (uint64_t)global;
    map.rank = 1;
    map.element_bytes = 16;
    map.box[0] = map.dims[0] = bytes / 16;
    return map;
}

static PendingTile make_tile(const TensorMapOnHost &map, void *shared, const int *coordinates,
                             Site site) {
    const unsigned alignment = map.element_bytes == 16 ? 16 : 128;  // contiguous bytes need less
    const uint32_t address = shared_address(shared, site);
    if (address % alignment) {
        fail_at("misaligned address", site, "TMA tile at shared address %u needs %u-byte alignment",
                address, alignment);
    }
    PendingTile tile{};
    tile.map = map;
    tile.shared = shared;
    for (unsigned i = 0; i < map.rank; i++) tile.coordinates[i] = coordinates[i];
    tile.thread = (uint16_t)thread_of_cluster();
    tile.clock = checking() ? current_clock() : 0;
    tile.site = site;
    return tile;
}

// Calls visit(shared, global, elements) for every 16 bytes of the tile; `global` is null where the
// row lies outside the tensor, and the elements outside are those with a zero mask bit.
template <class Visit>
static void each_chunk(const PendingTile &tile, Visit visit) {
    const TensorMapOnHost &map = tile.map;
    const unsigned row_bytes = map.box[0] * map.element_bytes, in_chunk = 16 / map.element_bytes;
    const uint32_t swizzle_mask = (1u << map.swizzle) - 1;
    long long rows = 1;
    for (unsigned i = 1; i < map.rank; i++) rows *= map.box[i];
    for (long long row = 0; row < rows; row++) {
        long long remaining = row, offset = 0;
        bool inside = true;
        for (unsigned i = 1; i < map.rank; i++) {
            const long long index = tile.coordinates[i] + remaining % map.box[i];
            remaining /= map.box[i];
            inside = inside && index >= 0 && index < (long long)map.dims[i];
            offset += index * (long long)map.stride_bytes[i - 1];
        }
        for (unsigned byte = 0; byte < row_bytes; byte += 16) {
            uint32_t address = shared_address(tile.shared) + (uint32_t)(row * row_bytes) + byte;
            address ^= (address >> 7 & swizzle_mask) << 4;
            const long long first = tile.coordinates[0] + (long long)(byte / map.element_bytes);
            uint32_t present = 0;
            for (unsigned e = 0; e < in_chunk && inside; e++) {
                if (first + e >= 0 && first + e < (long long)map.dims[0]) present |= 1u << e;
            }
            visit((char *)cluster_memory(address),
                  (char *)map.base + offset + first * map.element_bytes, present);
        }
    }
}

// Checks that no pending wgmma reads memory that a copy overwrites. The beginning of its operands
// is enough, as copies write whole tiles.
static void check_pending_products(const void *destination, size_t bytes, Site site) {
    const uint64_t begin = shared_address(destination), end = begin + bytes;
    for (const Warpgroup &group : hopper().warpgroups) {
        for (const WgmmaOperation &operation : group.operations) {
            auto reads = [&](uint64_t descriptor) {
                const uint64_t first = (descriptor & 0x3fff) << 4;
                return first >= begin && first < end;
            };
            const WgmmaOperands &operands = operation.operands;
            if (!reads(operands.b_descriptor) &&
                (operation.a_in_registers || !reads(operands.a_descriptor))) continue;
            fail_at_two("wgmma not complete", operation.site, site, "the copy at {other} "
                        "overwrites what it still reads: nobody waited for it (wgmma.wait_group) "
                        "before the tile was given back");
        }
    }
}

static void load_tile(void *destination, const TensorMapOnHost &known, void *mbarrier,
                      const int *coordinates, Site site) {
    Worker *w = worker;
    Mbarrier &barrier = use_mbarrier(mbarrier, site);
    PendingTile tile = make_tile(known, destination, coordinates, site);
    barrier.last_copy = MbarrierUse{current_fiber(), site};
    if (w->settings->check) {
        check_mbarrier_fence(barrier, site);
        if (barrier.owner == w) check_pending_products(destination, tile_bytes(known), site);
        if (barrier.owner != w) tile.known = known_clock(w);
        w->is_copying = true;
        check_access(destination, (size_t)tile_bytes(known), AccessKind::write, site);
        w->is_copying = false;
        mark_copy_pending(destination, (size_t)tile_bytes(known));
    }
    barrier.tiles.push_back(tile);
    // The copy may also complete at once: the random schedule tries both.
    if (w->settings->schedule == random_order && (random_bits(w) & 1)) land_tiles(barrier);
}

void tma_load(void *destination, const void *map, void *mbarrier, int rank, const int *coordinates,
              Site site) {
    load_tile(destination, read_map(map, rank, site), mbarrier, coordinates, site);
}
// .multicast::cluster: writes the tile, and counts its bytes, at the same offsets in every CTA of
// `ctas`.
void tma_load_multicast(void *destination, const void *map, void *mbarrier, int rank,
                        const int *coordinates, uint16_t ctas, Site site) {
    const TensorMapOnHost &known = read_map(map, rank, site);
    for (uint32_t rest = ctas; rest; rest &= rest - 1) {
        const uint32_t cta = (uint32_t)__builtin_ctz(rest);
        load_tile(cluster_pointer(destination, cta, site), known,
                  cluster_pointer(mbarrier, cta, site), coordinates, site);
    }
}
void bulk_load_multicast(void *destination, const void *source, uint32_t bytes, void *mbarrier,
                         uint16_t ctas, Site site) {
    for (uint32_t rest = ctas; rest; rest &= rest - 1) {
        const uint32_t cta = (uint32_t)__builtin_ctz(rest);
        bulk_load(cluster_pointer(destination, cta, site), source, bytes,
                  cluster_pointer(mbarrier, cta, site), site);
    }
}
// cp.async.bulk from the own shared memory to that of another CTA.
void bulk_send(void *destination, const void *source, uint32_t bytes, void *mbarrier, Site site) {
    if (checking()) check_proxy_fence(source, bytes, site);
    bulk_load(destination, source, bytes, mbarrier, site);
}
// st.async
void store_async(void *destination, const void *value, uint32_t bytes, void *mbarrier, Site site) {
    check_access(destination, bytes, AccessKind::write, site);
    memcpy(destination, value, bytes);
    Mbarrier &barrier = use_mbarrier(mbarrier, site);
    if (checking()) {
        hand_over_to(barrier);
        advance_clock(worker, self->linear);
    }
    barrier.bytes_missing -= bytes;
    complete_phase_if_due(barrier);
}
void bulk_load(void *destination, const void *source, uint32_t bytes, void *mbarrier, Site site) {
    const int start = 0;
    if (checking()) check_access(source, bytes, AccessKind::read, site);
    load_tile(destination, map_of_bytes(source, bytes, site), mbarrier, &start, site);
}

// A copy completes asynchronously, not at its issue: later barriers do not order it, only the
// mbarrier does.
static uint32_t landing_clock(const Mbarrier &mbarrier, const PendingTile &tile) {
    if (!checking() || tile.known) return tile.clock;
    const unsigned thread = tile.thread % MAX_THREADS_PER_CTA;
    advance_clock(mbarrier.owner, thread);
    return released_clocks(mbarrier.owner, thread)[thread];
}

void land_tiles(Mbarrier &mbarrier) {
    std::vector<PendingTile> tiles;
    tiles.swap(mbarrier.tiles);
    for (const PendingTile &tile : tiles) {
        const Touching touching(tile.site);
        const unsigned element = tile.map.element_bytes;
        const uint32_t clock = landing_clock(mbarrier, tile);
        each_chunk(tile, [&](char *shared, const char *global, uint32_t present) {
            char chunk[16] = {};
            for (unsigned e = 0; e < 16 / element; e++) {
                if (present >> e & 1) memcpy(chunk + e * element, global + e * element, element);
            }
            memcpy(shared, chunk, 16);
            if (checking()) record_async_write(shared, 16, tile.thread, clock, tile.site);
        });
        if (checking()) note_landed(mbarrier, tile, tile_bytes(tile.map));
        mbarrier.bytes_missing -= tile_bytes(tile.map);
        if (checking() && tile.known) {
            KnownCtas &known = mbarrier.handover.order.acquired;
            known = joined(known, tile.known);
            mbarrier.owner->uses_fences = true;
        } else if (checking()) {
            const unsigned thread = tile.thread % MAX_THREADS_PER_CTA;
            uint32_t &known = mbarrier.handover.clock[thread];
            known = std::max(known, clock);
            advance_clock(mbarrier.owner, thread);
        }
    }
    if (!tiles.empty()) complete_phase_if_due(mbarrier);
}

// ---- shared to global ----
static void store_tile(const TensorMapOnHost &known, const void *source, const int *coordinates,
                       Site site) {
    Worker *w = worker;
    HopperState &state = hopper();
    state.stores.resize(w->num_threads);
    const PendingTile tile = make_tile(known, const_cast<void *>(source), coordinates, site);
    if (w->settings->check) {
        check_access(source, (size_t)tile_bytes(known), AccessKind::read, site);
        check_proxy_fence(source, (size_t)tile_bytes(known), site);
    }
    state.stores[self->linear].push_back(tile);
}

void tma_store(const void *map, const void *source, int rank, const int *coordinates, Site site) {
    store_tile(read_map(map, rank, site), source, coordinates, site);
}
void bulk_store(void *destination, const void *source, uint32_t bytes, Site site) {
    const int start = 0;
    store_tile(map_of_bytes(destination, bytes, site), source, &start, site);
}

void bulk_commit() {
    HopperState &state = hopper();
    state.stores.resize(worker->num_threads);
    state.store_group_sizes.resize(worker->num_threads);
    auto &groups = state.store_group_sizes[self->linear];
    size_t committed = 0;
    for (const size_t size : groups) committed += size;
    groups.push_back(state.stores[self->linear].size() - committed);
}

static void land_stores(std::vector<PendingTile> &stores, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const PendingTile &tile = stores[i];
        const Touching touching(tile.site);
        const unsigned element = tile.map.element_bytes;
        each_chunk(tile, [&](char *shared, char *global, uint32_t present) {
            check_access(shared, 16, AccessKind::read, tile.site);
            for (unsigned e = 0; e < 16 / element; e++) {
                if (!(present >> e & 1)) continue;
                check_access(global + e * element, element, AccessKind::write, tile.site);
                memcpy(global + e * element, shared + e * element, element);
            }
        });
    }
    stores.erase(stores.begin(), stores.begin() + count);
}

void bulk_wait(unsigned pending_groups) {
    HopperState &state = hopper();
    if (state.store_group_sizes.empty()) return;
    auto &groups = state.store_group_sizes[self->linear];
    size_t landing = 0;
    while (groups.size() > pending_groups) {
        landing += groups.front();
        groups.erase(groups.begin());
    }
    land_stores(state.stores[self->linear], landing);
}

// A thread must not return with asynchronous operations pending, as its shared memory is freed.
void finish_hopper(Fiber *fiber) {
    if (!worker->hopper) return;
    HopperState &state = *worker->hopper;
    if (fiber->linear < state.stores.size() && !state.stores[fiber->linear].empty()) {
        fail("asynchronous store not complete", state.stores[fiber->linear].front().site,
             "the thread returned without waiting for its TMA store");
    }
    const size_t group = fiber->linear / WARPGROUP;
    if (group < state.warpgroups.size() && !state.warpgroups[group].operations.empty()) {
        fail("wgmma not complete", state.warpgroups[group].operations.front().site,
             "a thread of the warpgroup returned without waiting for it");
    }
}

}  // namespace coh
