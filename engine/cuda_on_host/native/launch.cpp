// One launch: CTAs or clusters are assigned to workers, which run their fibers to the end.
#if defined(__linux__)
#include <link.h>
#else
#include <dlfcn.h>
#endif

namespace coh {

char argument_values[MAX_ARGUMENTS][ARGUMENT_SLOT_BYTES] __attribute__((aligned(128)));
void *argument_pointers[MAX_ARGUMENTS];

// A fiber's stack has an inaccessible page, so each costs two of the process's memory mappings, of
// which Linux allows 65,530.
constexpr unsigned MAX_FIBERS = 24000;

static std::mutex idle_mutex;
static std::vector<Worker *> idle_workers;

// ---- one fiber ----
static void leave_cluster(Worker *w, Fiber *me) {
    if (w->settings->check) {
        w->known_at_exit = joined(w->known_at_exit, w->orders[me->linear].acquired);
        if (!w->alive) check_remote_accesses(w);
    }
    if (!w->alive) mprotect(w->window, WINDOW_BYTES, PROT_NONE);  // other CTAs' accesses fault
    note_arrival_by_leaving(me);
}

static void fiber_main() {
    launch.entry(launch.arguments);
    Worker *w = worker;
    Fiber *me = current_fiber();
    if (w->race.is_open) settle_race(w, true);
    if (!me->copies.empty()) land_copies(me, me->copies.size());
    finish_hopper(me);
    me->finished = true;
    w->alive--;
    if (w->cluster) leave_cluster(w, me);
    if (all_have_left(w)) leave_cta();
    release_barriers_of_the_living(w);
    if (launch.aborted.load(std::memory_order_relaxed)) leave_cta();
    void *abandoned;
    switch_to(next_or_deadlock(w), &abandoned);
    __builtin_unreachable();
}

// ---- workers ----
static char *map_memory(size_t bytes, int protection) {
    void *memory = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                        -1, 0);
    if (memory == MAP_FAILED) abort();  // the client reports the crash
    return (char *)memory;
}

static void prepare_worker(Worker *w, const LaunchSettings *settings, unsigned num_threads) {
    if (!w->window) {
        w->window_mapping = map_memory(WINDOW_BYTES + 2 * WINDOW_GUARD_BYTES, PROT_NONE);
        w->window = w->window_mapping + WINDOW_GUARD_BYTES;
        mprotect(w->window, WINDOW_BYTES, PROT_READ | PROT_WRITE);
    }
    if (w->num_fibers < num_threads) {
        if (w->stacks) munmap(w->stacks, FIBER_STACK_BYTES * w->num_fibers);
        delete[] w->fibers;
        w->num_fibers = num_threads;
        w->stacks = map_memory(FIBER_STACK_BYTES * num_threads, PROT_READ | PROT_WRITE);
        for (unsigned t = 0; t < num_threads; t++) {
            mprotect(w->stacks + t * FIBER_STACK_BYTES, PAGE_BYTES, PROT_NONE);
        }
        w->fibers = new Fiber[num_threads];
    }
    w->settings = settings;
    w->num_threads = num_threads;
    unsigned capacity = 1;
    while (capacity < num_threads + 1) capacity *= 2;
    w->ready.assign(capacity, 0);
    const unsigned warps = (num_threads + WARP - 1) / WARP;
    w->warp_operations.resize(warps * WARP_OPERATIONS);
    w->warp_operations_in_use.resize(warps);
    w->group_operations.resize(warps);
    w->last_buffer = 0;
    w->cluster = nullptr;
}

// The leader owns the workers of the other ranks and keeps them for later clusters, because their
// records hold clocks.
static void prepare_cluster(Worker *leader, unsigned num_threads) {
    Cluster &cluster = *leader->own_cluster;
    cluster.workers.assign(1, leader);
    while (cluster.others.size() + 1 < launch.cluster_size) cluster.others.emplace_back(new Worker);
    for (unsigned rank = 1; rank < launch.cluster_size; rank++) {
        Worker *w = cluster.others[rank - 1].get();
        prepare_worker(w, leader->settings, num_threads);
        w->leader = leader;
        w->rank = rank;
        cluster.workers.push_back(w);
    }
    for (Worker *w : cluster.workers) w->cluster = &cluster;
}

static Worker *take_worker(const LaunchSettings *settings, unsigned num_threads) {
    Worker *w = nullptr;
    {
        std::lock_guard<std::mutex> lock(idle_mutex);
        if (!idle_workers.empty()) {
            w = idle_workers.back();
            idle_workers.pop_back();
        }
    }
    if (!w) {
        w = new Worker;
        w->signal_stack = map_memory(64 << 10, PROT_READ | PROT_WRITE);
        w->own_cluster = new Cluster;
    }
    prepare_worker(w, settings, num_threads);
    if (launch.cluster_size > 1) prepare_cluster(w, num_threads);
    if (settings->check) prepare_checks(w);
    return w;
}

// ---- one CTA ----
static char *dynamic_smem_begin(const Worker *w) {
    // At the end of the window, so that an access beyond it faults.
    char *end = w->window + WINDOW_BYTES;
    const uintptr_t begin = (uintptr_t)(end - w->settings->dynamic_smem_bytes);
    return (char *)(begin & ~(uintptr_t)(DYNAMIC_SMEM_ALIGNMENT - 1));
}

static uint3 index_in(const uint32_t *dims, uint64_t index) {
    return {(uint32_t)(index % dims[0]), (uint32_t)(index / dims[0] % dims[1]),
            (uint32_t)(index / ((uint64_t)dims[0] * dims[1]))};
}

static void start_cta(Worker *w, uint64_t index) {
    const LaunchSettings &s = *w->settings;
    const uint3 block_idx = index_in(s.grid, index);
    w->ready_head = w->num_ready = 0;
    w->alive = w->num_threads;
    w->random_state = (s.seed + 1) * 0x9E3779B97F4A7C15ull ^ (index + 1) * 0xD1B54A32D192ED03ull;
    note_progress(w);
    w->passed_cluster_barrier = false;
    w->remote_accesses.clear();
    w->known_at_exit = nullptr;
    w->cta = (uint32_t)index;
    w->touching = Site{};
    for (Barrier &barrier : w->barriers) {
        barrier.arrived = barrier.expected = 0;
        barrier.waiting.clear();
        barrier.users.reset();
        barrier.num_users = 0;
        barrier.reducing = false;
    }
    for (size_t warp = 0; warp < w->warp_operations_in_use.size(); warp++) {
        uint32_t &in_use = w->warp_operations_in_use[warp];
        for (; in_use; in_use &= in_use - 1) {
            w->warp_operations[warp * WARP_OPERATIONS + __builtin_ctz(in_use)].in_use = false;
        }
    }
    for (GroupOperation &op : w->group_operations) op.in_use = false;
    reset_hopper(w);
    // All ones: NaN in every floating-point format.
    char *dynamic = w->dynamic_smem = dynamic_smem_begin(w);
    memset(w->window, 0xff, launch.module->end);
    memset(dynamic, 0xff, w->window + WINDOW_BYTES - dynamic);
    if (s.check) start_cta_checks(w);
    for (unsigned t = 0; t < w->num_threads; t++) {
        Fiber &f = w->fibers[t];
        f.thread_idx = uint3{t % s.block[0], t / s.block[0] % s.block[1],
                             t / (s.block[0] * s.block[1])};
        f.block_idx = block_idx;
        f.block_dim = dim3(s.block[0], s.block[1], s.block[2]);
        f.grid_dim = dim3(s.grid[0], s.grid[1], s.grid[2]);
        f.cluster_dim = dim3(s.cluster[0], s.cluster[1], s.cluster[2]);
        f.cluster_rank = w->rank;
        f.cluster_size = launch.cluster_size;
        f.owner = w;
        f.linear = t;
        f.lane = t % WARP;
        f.warp = t / WARP;
        f.static_smem = w->window;
        f.dynamic_smem = dynamic;
        f.dynamic_smem_bytes = s.dynamic_smem_bytes;
        f.finite_locals = s.finite_locals;
        f.finished = f.is_ready = false;
        f.asks_for_active = Site{};
        f.copies.clear();
        f.copies_in_group.clear();
        f.proxy_fence_clock = f.proxy_fence_floor = f.mbarrier_fence_clock = 0;
        f.cluster_arrivals = f.cluster_waits = 0;
        f.stack_pointer = first_frame(w->stacks + (t + 1) * FIBER_STACK_BYTES, fiber_main);
        make_ready(w, &f);
    }
}

// The last few bytes of the window may lie after the dynamic memory: they must be unchanged.
static void check_dynamic_smem_end(Worker *w, uint64_t index) {
    const LaunchSettings &s = *w->settings;
    const char *end = dynamic_smem_begin(w) + s.dynamic_smem_bytes;
    for (const char *p = end; p < w->window + WINDOW_BYTES; p++) {
        if ((unsigned char)*p == 0xff) continue;
        record_fault("shared memory out of bounds", Place(),
                     "CTA %llu wrote %lld bytes past the end of its %u bytes of dynamic shared "
                     "memory", (unsigned long long)index, (long long)(p - end),
                     s.dynamic_smem_bytes);
        return;
    }
}

// Starts all CTAs of a cluster: rank r has the linear index of the first plus r.
static void start_cluster(Worker *leader, uint64_t index) {
    const LaunchSettings &s = *leader->settings;
    Cluster &cluster = *leader->cluster;
    uint32_t clusters[3];
    for (int i = 0; i < 3; i++) clusters[i] = s.grid[i] / s.cluster[i];
    const uint3 at = index_in(clusters, index);
    uint32_t top_clock = 0;
    for (const Worker *w : cluster.workers) top_clock = std::max(top_clock, w->top_clock);
    for (Worker *w : cluster.workers) {
        w->top_clock = top_clock;  // so that all of them start at the same clock
        const uint3 in = index_in(s.cluster, w->rank);
        const uint64_t x = at.x * s.cluster[0] + in.x, y = at.y * s.cluster[1] + in.y;
        const uint64_t z = at.z * s.cluster[2] + in.z;
        start_cta(w, (z * s.grid[1] + y) * s.grid[0] + x);
    }
    cluster.alive = cluster.missing = leader->num_threads * launch.cluster_size;
    cluster.phase = 0;
    cluster.site = Site{};
    cluster.waiting.clear();
    cluster.start_clock = leader->floor_clock;
    cluster.released = cluster.released_before = nullptr;
}

static void finish_cluster(Worker *leader) {
    uint32_t top_clock = 0;
    each_of_cluster(leader, [&](Worker *w) {
        mprotect(w->window, WINDOW_BYTES, PROT_READ | PROT_WRITE);
        top_clock = std::max(top_clock, w->top_clock);
    });
    leader->top_clock = top_clock;  // its records contain clocks of the others
}

// Runs a cluster, or a CTA if there are no clusters.
static void run_cluster(Worker *w, uint64_t index) {
    if (w->cluster) start_cluster(w, index);
    else start_cta(w, index);
    if (sigsetjmp(w->fault_exit, 0) == 0) {
        w->in_cta = true;
        switch_to(next_or_deadlock(w), &w->scheduler_stack_pointer);
    } else {
        unblock_fault_signals();
    }
    w->in_cta = false;
    worker = w;
    self = nullptr;
    if (w->cluster) finish_cluster(w);
    if (launch.aborted.load()) return;
    if (w->settings->check) {
        each_of_cluster(w, warn_of_open_barriers);
        each_of_cluster(w, warn_of_open_phases);
    }
    if (!w->settings->dynamic_smem_bytes) return;
    each_of_cluster(w, [](Worker *of) { check_dynamic_smem_end(of, of->cta); });
}

static void run_worker(const LaunchSettings *settings) {
    const unsigned num_threads = settings->block[0] * settings->block[1] * settings->block[2];
    Worker *w = take_worker(settings, num_threads);
    worker = w;
    w->host_thread = pthread_self();
    stack_t alternate{}, previous{};
    alternate.ss_sp = w->signal_stack;
    alternate.ss_size = 64 << 10;
    sigaltstack(&alternate, &previous);
    {
        std::lock_guard<std::mutex> lock(launch.workers_mutex);
        launch.running.push_back(w);
    }
    uint64_t position;
    const uint64_t count = launch.num_clusters;
    while (!launch.aborted.load() && (position = launch.next_cluster.fetch_add(1)) < count) {
        const uint64_t chosen = (launch.first_cluster + position * launch.cluster_stride) % count;
        w->touched = Touched{-1, 0};
        run_cluster(w, settings->ctas ? settings->ctas[chosen] : chosen);
        if (settings->touched) settings->touched[chosen] = w->touched;
    }
    {
        std::lock_guard<std::mutex> lock(launch.workers_mutex);
        launch.running.erase(std::find(launch.running.begin(), launch.running.end(), w));
    }
    sigaltstack(&previous, nullptr);
    worker = nullptr;
    std::lock_guard<std::mutex> lock(idle_mutex);
    idle_workers.push_back(w);
}

// ---- the launch ----
// Chooses the order in which clusters start: position p runs cluster (first + p · stride) mod n.
static void choose_order(const LaunchSettings &s) {
    const uint64_t n = launch.num_clusters;
    launch.first_cluster = 0;
    launch.cluster_stride = 1;
    if (s.schedule == reverse_order) {
        launch.first_cluster = n - 1;
        launch.cluster_stride = n == 1 ? 1 : n - 1;
    } else if (s.schedule == random_order) {
        uint64_t mixed = (s.seed + 1) * 0x9E3779B97F4A7C15ull;
        mixed ^= mixed >> 31;
        launch.first_cluster = mixed % n;
        // Below 2^31, so that position · stride does not exceed 64 bits.
        uint64_t stride = (mixed >> 17) % std::min<uint64_t>(n, 1u << 31) | 1;
        auto common_divisor = [](uint64_t a, uint64_t b) {
            while (b) std::swap(a %= b, b);
            return a;
        };
        while (common_divisor(stride, n) != 1) stride += 2;
        launch.cluster_stride = stride;
    }
}

#if defined(__linux__)
static int note_image(struct dl_phdr_info *info, size_t, void *entry) {
    uintptr_t begin = UINTPTR_MAX, end = 0, data_begin = 0, data_end = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const auto &segment = info->dlpi_phdr[i];
        if (segment.p_type != PT_LOAD) continue;
        const uintptr_t address = info->dlpi_addr + segment.p_vaddr;
        begin = std::min(begin, address);
        end = std::max<uintptr_t>(end, address + segment.p_memsz);
        if (!(segment.p_flags & PF_W)) continue;
        data_begin = address;
        data_end = address + segment.p_memsz;
    }
    if ((uintptr_t)entry < begin || (uintptr_t)entry >= end) return 0;
    launch.image_begin = info->dlpi_addr;
    launch.image_end = end;
    launch.data_begin = data_begin;
    launch.data_end = data_end;
    return 1;
}
static void find_image(void *entry) { dl_iterate_phdr(note_image, entry); }
#else
static void find_image(void *entry) {
    Dl_info info;
    if (!dladdr(entry, &info)) return;
    launch.image_begin = (uintptr_t)info.dli_fbase;
    launch.image_end = launch.image_begin + (16u << 20);
}
#endif

static void check_guards() {
    for (const Buffer &b : buffers) {
        const char *damaged = damaged_slack(b);
        if (!damaged) continue;
        record_fault("guard zone damaged", Place(),
                     "a write landed at byte %lld of %s (%zu bytes)",
                     (long long)(damaged - b.base), b.name, b.size);
        return;
    }
}

static bool acceptable(const LaunchSettings &s) {
    const uint64_t threads = (uint64_t)s.block[0] * s.block[1] * s.block[2];
    const uint32_t *cluster = s.cluster;
    const uint64_t cluster_size = (uint64_t)cluster[0] * cluster[1] * cluster[2];
    if (cluster_size < 1 || cluster_size > MAX_CLUSTER_SIZE) {
        record_fault("invalid launch", Place(), "a cluster has 1 to 8 CTAs, or 16 where the launch "
                     "asks for it, and not %llu", (unsigned long long)cluster_size);
    } else if (s.grid[0] % cluster[0] || s.grid[1] % cluster[1] || s.grid[2] % cluster[2]) {
        record_fault("invalid launch", Place(), "the grid (%u,%u,%u) is no multiple of the cluster "
                     "(%u,%u,%u)", s.grid[0], s.grid[1], s.grid[2], cluster[0], cluster[1],
                     cluster[2]);
    } else if (s.ctas && cluster_size > 1) {
        record_fault("invalid launch", Place(), "a kernel with clusters runs whole, not in part");
    } else if (threads < 1 || threads > MAX_THREADS_PER_CTA) {
        record_fault("invalid launch", Place(), "a CTA has 1 to %d threads, not %llu",
                     MAX_THREADS_PER_CTA, (unsigned long long)threads);
    } else if (!s.grid[0] || !s.grid[1] || !s.grid[2]) {
        record_fault("invalid launch", Place(), "the grid is empty");
    } else if (s.dynamic_smem_bytes > MAX_DYNAMIC_SMEM_BYTES) {
        record_fault("invalid launch", Place(),
                     "%u bytes of dynamic shared memory: no GPU has more than %zu",
                     s.dynamic_smem_bytes, MAX_DYNAMIC_SMEM_BYTES);
    } else if (launch.module->end == UINT32_MAX) {
        record_fault("invalid launch", Place(),
                     "the static shared arrays exceed %zu bytes or are more than %d",
                     STATIC_WINDOW_BYTES, MAX_SHARED_ARRAYS);
    }
    return !launch.aborted.load();
}

}  // namespace coh

#pragma GCC visibility push(default)  // the rest of the runtime is hidden
extern "C" {

// Runs one kernel over its grid. `values[i]` points to argument i of `sizes[i]` bytes (at most
// ARGUMENT_SLOT_BYTES each, MAX_ARGUMENTS of them). Fills `report`; returns report->failed.
int coh_launch(coh::Module *module, void (*entry)(void **), void **values, const uint32_t *sizes,
               int num_arguments, const LaunchSettings *settings, Report *report) {
    coh::Launch &launch = coh::launch;
    memset(&launch.report, 0, sizeof launch.report);
    launch.aborted.store(false);
    launch.module = module;
    launch.entry = entry;
    for (int i = 0; i < num_arguments; i++) {
        memcpy(coh::argument_values[i], values[i], sizes[i]);
        coh::argument_pointers[i] = coh::argument_values[i];
    }
    launch.arguments = coh::argument_pointers;
    coh::find_image((void *)entry);
    launch.serial = launch.serial == UINT16_MAX ? 1 : launch.serial + 1;
    launch.num_ctas = (uint64_t)settings->grid[0] * settings->grid[1] * settings->grid[2];
    if (settings->ctas) launch.num_ctas = settings->num_ctas;
    launch.next_cluster = 0;
    if (coh::acceptable(*settings)) {
        const uint32_t *cluster = settings->cluster;
        launch.cluster_size = cluster[0] * cluster[1] * cluster[2];
        launch.num_clusters = launch.num_ctas / launch.cluster_size;
        coh::choose_order(*settings);
        coh::forget_locations();
        if (settings->check) coh::note_device_variables(launch.data_begin, launch.data_end);
        coh::FaultHandlers handlers;
        const unsigned threads = settings->block[0] * settings->block[1] * settings->block[2];
        uint64_t workers = (uint64_t)std::max(1, settings->workers);
        if (module->needs_whole_grid) workers = launch.num_clusters;
        workers = std::min<uint64_t>(
            {workers, launch.num_clusters,
             std::max(1u, coh::MAX_FIBERS / (threads * launch.cluster_size))});
        launch.num_together = workers * launch.cluster_size;
        module->grid_barrier = 0;
        std::vector<std::thread> helpers;
        for (uint64_t i = 1; i < workers; i++) helpers.emplace_back(coh::run_worker, settings);
        coh::run_worker(settings);
        for (std::thread &helper : helpers) helper.join();
        if (!launch.aborted.load() && !settings->touched) coh::check_guards();
    }
    *report = launch.report;
    return report->failed;
}

}  // extern "C"
#pragma GCC visibility pop
