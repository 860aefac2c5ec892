// Vector clocks, with which races in shared memory are found. Thread t's own clock advances at every
// synchronisation in which it takes part; clocks_of(t)[u] is the last time of u that t is ordered
// after. Everything up to `floor_clock` is ordered before all threads: a barrier of the whole CTA
// (or a new CTA) raises it above every clock in use, and no clocks have to be joined or cleared.
namespace coh {

void join_clock(uint32_t *into, const uint32_t *from, unsigned n) {
    for (unsigned i = 0; i < n; i++) into[i] = std::max(into[i], from[i]);
}

static inline uint32_t clock_of(Worker *w, unsigned thread) {
    return std::max(clocks_of(w, thread)[thread], w->floor_clock + 1);
}

const uint32_t *released_clocks(Worker *w, unsigned thread) {
    uint32_t *clocks = clocks_of(w, thread);
    clocks[thread] = clock_of(w, thread);
    return clocks;
}

void advance_clock(Worker *w, unsigned thread) {
    const uint32_t next = clock_of(w, thread) + 1;
    clocks_of(w, thread)[thread] = next;
    w->top_clock = std::max(w->top_clock, next);
}

void order_whole_cta(Worker *w) {
    w->floor_clock = ++w->top_clock;
    w->top_clock = w->floor_clock + 1;
}

// Accesses of another CTA of the cluster happened before if they precede the cluster's start, or if
// this thread acquired them.
static bool happened_before_remotely(Worker *w, const Access &access, unsigned thread) {
    const Cluster &cluster = *w->cluster;
    return access.clock() <= cluster.start_clock ||
           covers(w->orders[thread].acquired, cluster.workers[access.rank()]->cta, access.thread(),
                  access.clock());
}

inline bool happened_before(Worker *w, const Access &access, unsigned thread) {
    if (__builtin_expect(w->cluster && access.rank() != w->rank, 0)) {
        return happened_before_remotely(w, access, thread);
    }
    return access.clock() <= w->floor_clock || access.thread() == thread ||
           clocks_of(w, thread)[access.thread()] >= access.clock();
}

}  // namespace coh
