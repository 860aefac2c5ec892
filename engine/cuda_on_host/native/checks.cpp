// The check build: finds the memory that an access belongs to, and checks the access there.
namespace coh {

// Before a launch. Records of earlier launches are kept; all are older than `floor_clock`.
static void prepare_records(Worker *w, bool start_over) {
    if (!w->shadow) {
        void *shadow = mmap(nullptr, WINDOW_BYTES / GRANULE_BYTES * sizeof(SharedShadow),
                            PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                            -1, 0);
        if (shadow == MAP_FAILED) abort();
        w->shadow = (SharedShadow *)shadow;
    }
    if (start_over) {
        memset((void *)w->shadow, 0, WINDOW_BYTES / GRANULE_BYTES * sizeof(SharedShadow));
        w->top_clock = w->cta_serial = 0;
    }
    w->clocks.assign((size_t)w->num_threads * w->num_threads, 0);
    w->orders.assign(w->num_threads, MemoryOrder());
}
void prepare_checks(Worker *leader) {
    bool start_over = false;
    each_of_cluster(leader, [&](Worker *w) {
        start_over |= w->top_clock > UINT32_MAX / 2 || w->cta_serial > UINT32_MAX / 2;
    });
    each_of_cluster(leader, [&](Worker *w) { prepare_records(w, start_over); });
}

void start_cta_checks(Worker *w) {
    order_whole_cta(w);
    w->cta_serial++;
    w->shared_locations.clear();
    w->own_atomics.clear();
    for (Barrier &barrier : w->barriers) reset(w, barrier.handover);
    if (w->uses_fences) w->orders.assign(w->num_threads, MemoryOrder());
    w->uses_fences = false;
    w->is_copying = false;
    w->running_products = 0;
    w->reads_by_descriptor = false;
    w->race = OpenRace{};
}

static bool is_in_window(const Worker *w, uintptr_t address) {
    return address - (uintptr_t)w->window_mapping < WINDOW_BYTES + 2 * WINDOW_GUARD_BYTES;
}

void check_access(const volatile void *pointer, size_t bytes, AccessKind kind, Place place,
                  Scope scope) {
    Worker *w = worker;
    if (!w || !w->leader->in_cta || !w->settings->check || !bytes) return;
    const uintptr_t address = (uintptr_t)pointer;
    // The kernel reads threadIdx, blockIdx and so on.
    if (address == (uintptr_t)&self) return;
    if (address - (uintptr_t)launch.module < sizeof *launch.module) return;  // statement marks
    if (address - (uintptr_t)w->fibers < sizeof(Fiber) * w->num_fibers) return;

    if (is_in_window(w, address)) return check_shared(w, w, address, bytes, kind, place);
    const uintptr_t stack = (uintptr_t)w->stacks + self->linear * FIBER_STACK_BYTES;
    if (address - stack < FIBER_STACK_BYTES) {
        if (w->running_products >> self->linear / 128 & 1) check_product_registers(address, bytes, kind, place);
        return;
    }
    // Most accesses are to the same buffer as the previous one.
    if (w->last_buffer < buffers.size()) {
        Buffer &b = buffers[w->last_buffer];
        if (address - (uintptr_t)b.mapping < b.mapping_size) {
            return check_global(w, b, address, bytes, kind, place, scope);
        }
    }
    if (Buffer *b = buffer_around(address)) {
        w->last_buffer = b - buffers.data();
        return check_global(w, *b, address, bytes, kind, place, scope);
    }
    if (w->cluster) {
        for (Worker *owner : w->cluster->workers) {
            if (!is_in_window(owner, address)) continue;
            note_remote_access(owner, kind, pointer, place);
            return check_shared(w, owner, address, bytes, kind, place);
        }
    }
    if (address - (uintptr_t)w->stacks < FIBER_STACK_BYTES * w->num_fibers) {
        fail_at("illegal address", place, "%s of another thread's local memory", verb(kind));
    }
    Buffer &variables = device_variables;
    if (address - (uintptr_t)variables.base < variables.size) {
        return check_global(w, variables, address, bytes, kind, place, scope);
    }
    const bool constant = address >= launch.image_begin && address < launch.image_end;
    const bool argument = address - (uintptr_t)argument_values < sizeof argument_values ||
                          address - (uintptr_t)argument_pointers < sizeof argument_pointers;
    if (constant || argument || is_on_heap(address, bytes)) return;
    fail_at("illegal address", place, "%zu-byte %s at 0x%llx, which is in no buffer", bytes,
            verb(kind), (unsigned long long)address);
}

}  // namespace coh
