// barrier.cluster, and accesses to the shared memory of other CTAs of a cluster.
namespace coh {

// ---- the barrier: completes when every thread that has not returned has arrived ----
static void complete_if_due(Cluster &cluster) {
    if (cluster.missing) return;
    cluster.phase++;
    cluster.missing = cluster.alive;
    cluster.released_before = cluster.released;
    for (Fiber *fiber : cluster.waiting) make_ready(fiber->owner, fiber);
    cluster.waiting.clear();
    note_progress(worker);
}

void note_arrival_by_leaving(Fiber *fiber) {
    Cluster &cluster = *worker->cluster;
    cluster.alive--;
    if (fiber->cluster_arrivals > cluster.phase) return;  // it had arrived
    cluster.missing--;
    if (cluster.alive) complete_if_due(cluster);
}

void cluster_arrive(Order order, Site site) {
    Worker *w = worker;
    Fiber *me = current_fiber();
    if (me->cluster_arrivals > me->cluster_waits) {
        fail_at_two("cluster barrier", site, me->cluster_site,
                    "this thread arrives a second time and did not wait since it arrived at "
                    "{other}");
    }
    me->cluster_arrivals++;
    me->cluster_site = site;
    if (!w->cluster) return;  // a cluster of one CTA: cluster_wait does the rest
    Cluster &cluster = *w->cluster;
    if (cluster.missing == cluster.alive) cluster.site = site;
    if (w->settings->check) {
        if (order == Order::release) note_for_release(w, Scope::gpu);
        cluster.released = joined(cluster.released, w->orders[me->linear].fenced);
    }
    cluster.missing--;
    complete_if_due(cluster);
}

void cluster_wait(Site site) {
    Worker *w = worker;
    Fiber *me = current_fiber();
    if (me->cluster_arrivals == me->cluster_waits) {
        fail_at("cluster barrier", site, "this thread waits and did not arrive before: "
                "barrier.cluster.arrive comes first");
    }
    me->cluster_waits++;
    if (!w->cluster) return barrier_sync(0, 0, me->cluster_site);
    Cluster &cluster = *w->cluster;
    if (cluster.phase < me->cluster_arrivals) {
        cluster.waiting.push_back(me);
        run_others(w, me);
    } else if (w->settings->schedule == random_order) {
        make_ready(w, me);
        run_others(w, me);
    }
    w->passed_cluster_barrier = true;
    if (w->settings->check) acquire(w, cluster.released_before);
}

size_t describe_cluster_barrier(Worker *w, char *text, size_t size) {
    if (!w->cluster || w->cluster->waiting.empty()) return 0;
    const Cluster &cluster = *w->cluster;
    const int used = snprintf(text, size, " %zu of %u threads of the cluster wait at its barrier "
                              "(%s:%d), where %u have yet to arrive;", cluster.waiting.size(),
                              cluster.alive, cluster.site.file, cluster.site.line, cluster.missing);
    return std::min((size_t)used, size);
}

// ---- shared memory of other CTAs ----
Worker *owner_of(const void *pointer) {
    Worker *w = worker;
    if ((uintptr_t)pointer - (uintptr_t)w->window < WINDOW_BYTES) return w;
    if (!w->cluster) return nullptr;
    for (Worker *other : w->cluster->workers) {
        if ((uintptr_t)pointer - (uintptr_t)other->window < WINDOW_BYTES) return other;
    }
    return nullptr;
}

void *cluster_pointer(const void *pointer, uint32_t rank, Site site) {
    Worker *w = worker;
    const Worker *owner = owner_of(pointer);
    if (!owner) fail_at("illegal address", site, "pointer %p is not in shared memory", pointer);
    const unsigned size = self->cluster_size;
    if (rank >= size) {
        fail_at("bad cluster rank", site, "rank %u in a cluster of %u CTAs", rank, size);
    }
    const Worker *target = w->cluster ? w->cluster->workers[rank] : w;
    return target->window + ((const char *)pointer - owner->window);
}
uint32_t cluster_rank_of(const void *pointer, Site site) {
    const Worker *owner = owner_of(pointer);
    if (!owner) fail_at("illegal address", site, "pointer %p is not in shared memory", pointer);
    return owner->rank;
}
// Converts a shared address to a shared::cluster one.
uint32_t cluster_address(uint64_t address, uint32_t rank, Site site) {
    return shared_address(cluster_pointer(cluster_memory(address, site), rank, site), site);
}

// ---- check build: the other CTA must be running from the first to the last access ----
void note_remote_access(Worker *owner, AccessKind kind, const volatile void *pointer, Place place) {
    Worker *w = worker;
    if (!owner->alive) {
        char where[160];
        describe_shared((const void *)pointer, where, sizeof where);
        fail_at("shared memory of a CTA that has left", place, "%s of %s: all threads of that CTA "
                "have returned, so a cluster.sync() is missing before the end of the kernel",
                verb(kind), where);
    }
    const MemoryOrder &mine = w->orders[self->linear];
    if (!w->passed_cluster_barrier && !find_cta(mine.acquired, owner->cta)) {
        char where[160];
        describe_shared((const void *)pointer, where, sizeof where);
        fail_at("shared memory of a CTA that may not have started", place, "%s of %s: a "
                "cluster.sync() is missing before the first access to another CTA", verb(kind),
                where);
    }
    Access access(thread_of_cluster(), current_clock(), 0, place);
    owner->remote_accesses[thread_of_cluster()] = access;
}

static bool knows_last_access(Worker *w, const KnownCtas &known, const Access &access) {
    const uint32_t cta = w->cluster->workers[access.rank()]->cta;
    return covers(known, cta, access.thread(), access.clock());
}

void check_remote_accesses(Worker *w) {
    for (const auto &[thread, access] : w->remote_accesses) {
        if (knows_last_access(w, w->known_at_exit, access)) continue;
        const Worker *reader = w->cluster->workers[access.rank()];
        fail_at("shared memory of a CTA that has left", access.place, "this access by CTA rank %u "
                "of the cluster may come after the CTA of rank %u has returned: that CTA does not "
                "wait for it, because a cluster.sync() is missing before the end of the kernel",
                reader->rank, w->rank);
    }
}

}  // namespace coh
