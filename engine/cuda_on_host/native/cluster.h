// CTAs of a cluster: co-resident, with a common barrier and access to each other's shared memory.
#pragma once

namespace coh {

struct Cluster {
    std::vector<std::unique_ptr<Worker>> others;  // ranks 1, 2, ... of the leader's cluster
    std::vector<Worker *> workers;                // of this launch, by rank
    unsigned alive = 0;    // threads that have not returned
    uint64_t phase = 0;    // of barrier.cluster: number of completed phases
    unsigned missing = 0;  // threads that have not arrived yet
    Site site{};           // of the first arrival of the phase
    std::vector<Fiber *> waiting;
    // Check build.
    uint32_t start_clock = 0;  // accesses up to it precede this cluster, for all of its CTAs
    KnownCtas released;        // released by the arrivals of the phase
    KnownCtas released_before;  // released by those of the last completed phase
};

inline bool all_have_left(const Worker *w) {
    return w->cluster ? w->cluster->alive == 0 : w->alive == 0;
}
// Calls visit(worker) for all CTAs of `w`'s cluster, `w` first.
template <class Visit>
inline void each_of_cluster(Worker *w, Visit visit) {
    if (!w->cluster) return visit(w);
    const auto &workers = w->cluster->workers;
    for (size_t i = 0; i < workers.size(); i++) visit(workers[(w->rank + i) % workers.size()]);
}

// cluster.cpp
void note_arrival_by_leaving(Fiber *fiber);
void note_remote_access(Worker *owner, AccessKind kind, const volatile void *pointer, Place place);
void check_remote_accesses(Worker *w);  // when its last thread has returned
size_t describe_cluster_barrier(Worker *w, char *text, size_t size);

}  // namespace coh
