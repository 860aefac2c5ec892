// One launch: CTAs are dealt to workers, each runs its CTA's fibers to the end.
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
static void fiber_main() {
    launch.entry(launch.arguments);
    Worker *w = worker;
    Fiber *me = current_fiber();
    if (!me->copies.empty()) land_copies(me, me->copies.size());
    finish_hopper(me);
    me->finished = true;
    if (--w->alive == 0) leave_cta();
    release_barriers_of_the_living(w);
    if (launch.aborted.load(std::memory_order_relaxed)) leave_cta();
    Fiber *next = next_or_deadlock(w);
    self = next;
    void *abandoned;
    coh_switch(&abandoned, next->stack_pointer);
    __builtin_unreachable();
}

// ---- workers ----
static char *map_memory(size_t bytes, int protection) {
    void *memory = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                        -1, 0);
    if (memory == MAP_FAILED) abort();  // the client reports the crash
    return (char *)memory;
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
        w->window_mapping = map_memory(WINDOW_BYTES + 2 * WINDOW_GUARD_BYTES, PROT_NONE);
        w->window = w->window_mapping + WINDOW_GUARD_BYTES;
        mprotect(w->window, WINDOW_BYTES, PROT_READ | PROT_WRITE);
        w->signal_stack = map_memory(64 << 10, PROT_READ | PROT_WRITE);
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
    if (settings->check) prepare_checks(w);
    return w;
}

// ---- one CTA ----
static char *dynamic_smem_begin(const Worker *w) {
    // At the very end of the window: what reaches beyond it faults.
    char *end = w->window + WINDOW_BYTES;
    const uintptr_t begin = (uintptr_t)(end - w->settings->dynamic_smem_bytes);
    return (char *)(begin & ~(uintptr_t)(DYNAMIC_SMEM_ALIGNMENT - 1));
}

static void start_cta(Worker *w, uint64_t index) {
    const LaunchSettings &s = *w->settings;
    const uint3 block_idx{(uint32_t)(index % s.grid[0]), (uint32_t)(index / s.grid[0] % s.grid[1]),
                          (uint32_t)(index / ((uint64_t)s.grid[0] * s.grid[1]))};
    w->ready_head = w->num_ready = 0;
    w->alive = w->num_threads;
    w->random_state = (s.seed + 1) * 0x9E3779B97F4A7C15ull ^ (index + 1) * 0xD1B54A32D192ED03ull;
    w->spins = w->turns_without_progress = 0;
    w->cta = (uint32_t)index;
    w->touching = Site{};
    for (Barrier &barrier : w->barriers) {
        barrier.arrived = barrier.expected = 0;
        barrier.waiting.clear();
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
    char *dynamic = dynamic_smem_begin(w);
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
        f.proxy_fence_clock = f.proxy_fence_floor = 0;
        f.stack_pointer = first_frame(w->stacks + (t + 1) * FIBER_STACK_BYTES, fiber_main);
        make_ready(w, &f);
    }
}

// The last few bytes of the window may lie behind the dynamic memory: nobody may have written them.
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

static void run_cta(Worker *w, uint64_t index) {
    start_cta(w, index);
    if (sigsetjmp(w->fault_exit, 0) == 0) {
        w->in_cta = true;
        Fiber *first = next_ready(w);
        self = first;
        coh_switch(&w->scheduler_stack_pointer, first->stack_pointer);
    } else {
        unblock_fault_signals();
    }
    w->in_cta = false;
    self = nullptr;
    if (!launch.aborted.load() && w->settings->dynamic_smem_bytes) {
        check_dynamic_smem_end(w, index);
    }
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
    while (!launch.aborted.load() && (position = launch.next_cta.fetch_add(1)) < launch.num_ctas) {
        const uint64_t chosen = (launch.cta_start + position * launch.cta_stride) % launch.num_ctas;
        w->touched = Touched{-1, 0};
        run_cta(w, settings->ctas ? settings->ctas[chosen] : chosen);
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
// The order in which CTAs start: position p runs CTA (start + p · stride) mod n.
static void choose_cta_order(const LaunchSettings &s) {
    const uint64_t n = launch.num_ctas;
    launch.cta_start = 0;
    launch.cta_stride = 1;
    if (s.schedule == reverse_order) {
        launch.cta_start = n - 1;
        launch.cta_stride = n - 1;
        if (n == 1) launch.cta_stride = 1;
    } else if (s.schedule == random_order) {
        uint64_t mixed = (s.seed + 1) * 0x9E3779B97F4A7C15ull;
        mixed ^= mixed >> 31;
        launch.cta_start = mixed % n;
        // Below 2^31, so that position · stride stays within 64 bits.
        uint64_t stride = (mixed >> 17) % std::min<uint64_t>(n, 1u << 31) | 1;
        auto common_divisor = [](uint64_t a, uint64_t b) {
            while (b) std::swap(a %= b, b);
            return a;
        };
        while (common_divisor(stride, n) != 1) stride += 2;
        launch.cta_stride = stride;
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
    if (threads < 1 || threads > MAX_THREADS_PER_CTA) {
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
    launch.next_cta = 0;
    if (coh::acceptable(*settings)) {
        coh::choose_cta_order(*settings);
        coh::forget_locations();
        if (settings->check) coh::note_device_variables(launch.data_begin, launch.data_end);
        coh::FaultHandlers handlers;
        const unsigned threads = settings->block[0] * settings->block[1] * settings->block[2];
        uint64_t workers = (uint64_t)std::max(1, settings->workers);
        if (module->needs_whole_grid) workers = launch.num_ctas;
        workers = std::min<uint64_t>({workers, launch.num_ctas,
                                      std::max(1u, coh::MAX_FIBERS / threads)});
        launch.num_workers = workers;
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
