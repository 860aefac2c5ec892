// setmaxnreg: moves registers between a CTA's warpgroups; their total is that of the launch.
namespace coh {

static constexpr int SM_REGISTERS = 65536, MAX_PER_THREAD = 255;

// Registers per thread at launch, as far as they are known: the most that so many threads can have.
// A kernel that runs with two CTAs per SM may begin with as few as half of them.
static int registers_at_launch() {
    return std::min(SM_REGISTERS / (int)worker->num_threads, MAX_PER_THREAD) / 8 * 8;
}

static RegisterPool &register_pool() {
    RegisterPool &pool = hopper().registers;
    const size_t groups = (worker->num_threads + WARPGROUP - 1) / WARPGROUP;
    if (pool.held.empty()) {
        pool.held.assign(groups, registers_at_launch());
        pool.has_asked.assign(groups, false);
    }
    return pool;
}

struct AskedRegisters {
    int count;
    RegisterChange change;
    Site site;
};

// Grants waiting requests in order, as long as there are enough registers.
static void grant_registers(Worker *w, RegisterPool &pool) {
    auto &waiting = pool.waiting;
    while (!waiting.empty()) {
        const RegisterPool::Waiting &first = waiting.front();
        const long long more = (long long)(first.count - pool.held[first.group]) * WARPGROUP;
        if (more > pool.free) return;
        pool.free -= more;
        pool.held[first.group] = first.count;
        for (Fiber *fiber : first.fibers) make_ready(w, fiber);
        waiting.erase(waiting.begin());
        note_progress(w);
    }
}

void change_registers_of_group(void **threads, uint32_t) {
    const AskedRegisters &asked = *(const AskedRegisters *)threads[0];
    for (int t = 1; t < WARPGROUP; t++) {
        const AskedRegisters &other = *(const AskedRegisters *)threads[t];
        if (other.count == asked.count && other.change == asked.change) continue;
        fail_at("bad setmaxnreg", asked.site, "the warps of a warpgroup ask for %d and for %d "
                "registers, or in two directions", asked.count, other.count);
    }
    RegisterPool &pool = register_pool();
    const size_t group = self->linear / WARPGROUP;
    const int held = pool.held[group];
    const bool is_known = pool.has_asked[group];  // else only the maximum is known
    pool.has_asked[group] = true;
    if (asked.change == RegisterChange::dec && asked.count > held) {
        fail_at("bad setmaxnreg", asked.site, "setmaxnreg.dec to %d registers, where each of %u "
                "threads has %d at most: .dec gives registers back, and .inc takes more",
                asked.count, worker->num_threads, held);
    }
    if (asked.change == RegisterChange::inc && asked.count < (is_known ? held : held / 2)) {
        fail_at("bad setmaxnreg", asked.site, "setmaxnreg.inc to %d registers, where each of %u "
                "threads has %d: .inc takes more registers, and .dec gives them back",
                asked.count, worker->num_threads, held);
    }
    if (asked.count > held) {
        pool.waiting.push_back(RegisterPool::Waiting{group, asked.count, asked.site, {}});
    } else {
        pool.free += (long long)(held - asked.count) * WARPGROUP;
        pool.held[group] = asked.count;
    }
    grant_registers(worker, pool);
}

void set_max_registers(int count, RegisterChange change, Site site) {
    if (count < 24 || count > 256 || count % 8) {
        fail_at("bad setmaxnreg", site, "%d registers: a multiple of 8 from 24 to 256 is needed",
                count);
    }
    AskedRegisters asked{count, change, site};
    group_collective(first_warp_of_group(), 4, change_registers_of_group, &asked, site);
    for (RegisterPool::Waiting &waiting : register_pool().waiting) {
        if (waiting.group != self->linear / WARPGROUP) continue;
        waiting.fibers.push_back(current_fiber());
        return run_others(worker, current_fiber());
    }
}

size_t describe_register_waits(Worker *w, char *text, size_t size, Site &first) {
    size_t used = 0;
    if (!w->hopper) return used;
    const RegisterPool &pool = w->hopper->registers;
    for (const RegisterPool::Waiting &waiting : pool.waiting) {
        if (used >= size) break;
        if (!first.file) first = waiting.site;
        const int more = waiting.count - pool.held[waiting.group];
        used += snprintf(text + used, size - used, " warpgroup %zu waits at setmaxnreg (%s:%d) for "
                         "%d registers more for each of its %d threads, where %lld are free: other "
                         "warps have to give back more by setmaxnreg.dec;", waiting.group,
                         waiting.site.file, waiting.site.line, more, WARPGROUP, pool.free);
    }
    return std::min(used, size);
}

}  // namespace coh
