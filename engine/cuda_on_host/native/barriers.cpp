// bar.sync, bar.arrive and __syncthreads.
namespace coh {

// After a barrier of the whole CTA, another group of threads may use a named barrier.
static void forget_users(Worker *w) {
    for (Barrier &barrier : w->barriers) {
        if (!barrier.num_users) continue;
        barrier.users.reset();
        barrier.num_users = 0;
    }
}

// If more threads use a named barrier than it expects, two groups share its number, and arrivals of
// one group can release the other.
static void note_user(Barrier &barrier, int id, int threads, Site site) {
    const unsigned me = self->linear;
    if (barrier.users.test(me)) return;
    barrier.users.set(me);
    barrier.counted = threads;
    if (++barrier.num_users != threads + 1) return;
    warn("barrier of two groups", site, "barrier %d counts %d threads, but more use it between two "
         "barriers of the CTA: if groups of threads share a barrier, arrivals of one group release "
         "the other. Give each group its own barrier number", id, threads);
}

// Appends why a named barrier did not order two accesses; nothing if no reason is known.
void describe_shared_barriers(const Worker *w, char *text, size_t size) {
    for (int id = 0; id < NUM_BARRIERS; id++) {
        const Barrier &barrier = w->barriers[id];
        if (barrier.counted && barrier.num_users > barrier.counted) {
            snprintf(text, size, "barrier %d counts %d threads, but more use it: it completes "
                     "before all of them have arrived", id, barrier.counted);
            return;
        }
    }
}

inline void release_barrier(Worker *w, Barrier &barrier, Fiber *releaser) {
    if (w->settings->check) {
        // __syncthreads() orders all threads; threads that have returned count as arrived. At a
        // named barrier, a thread that only arrived (bar.arrive) is not ordered after the others.
        if (!barrier.expected || barrier.waiting.size() == w->num_threads) {
            order_whole_cta(w);
            forget_users(w);
            for (Fiber *f : barrier.waiting) take_over_order(w, barrier.handover, f->linear);
        } else {
            for (Fiber *f : barrier.waiting) take_over(w, barrier.handover, f->linear);
        }
        reset(w, barrier.handover);
    }
    // The last thread to arrive continues, except in the random schedule, which draws the next one.
    const bool everyone = w->settings->schedule == random_order;
    for (Fiber *fiber : barrier.waiting) {
        if (fiber != releaser || everyone) make_ready(w, fiber);
    }
    barrier.waiting.clear();
    barrier.arrived = 0;
    barrier.expected = 0;
    barrier.reducing = false;
    note_progress(w);
}

// A thread that returns no longer counts for barriers of the whole CTA.
void release_barriers_of_the_living(Worker *w) {
    for (Barrier &barrier : w->barriers) {
        if (barrier.arrived && !barrier.expected && barrier.arrived >= (int)w->alive) {
            release_barrier(w, barrier, nullptr);
        }
    }
}

// Warns about barriers with arrivals but no waiting thread when a CTA has ended: legal, but
// probably a mistake.
void warn_of_open_barriers(Worker *w) {
    for (int id = 0; id < NUM_BARRIERS; id++) {
        const Barrier &barrier = w->barriers[id];
        if (!barrier.arrived) continue;
        warn("arrivals that nobody waited for", barrier.site, "at the end of CTA %u barrier %d has "
             "%d of %d arrivals, the first of them here: a bar.sync is missing, or one bar.arrive "
             "is too many", w->cta, id, barrier.arrived, barrier.expected);
    }
}

static inline void arrive(int id, int threads, Site site, bool wait) {
    Worker *w = worker;
    Fiber *me = current_fiber();
    if (__builtin_expect(w->race.is_open, 0)) {
        settle_race(w, threads == 0 && w->race.waited.file && site != w->race.waited);
        leave_cta();
    }
    if ((unsigned)id >= NUM_BARRIERS) {
        fail_at("bad barrier", site, "barrier %d does not exist: a CTA has 0 to %d", id,
                NUM_BARRIERS - 1);
    }
    Barrier &barrier = w->barriers[id];
    if (barrier.arrived == 0) {
        barrier.expected = threads;
        barrier.site = site;
    } else if (threads == 0 && barrier.site != site) {
        fail_at_two("divergent barrier", site, barrier.site,
                    "this thread is at __syncthreads() while %d other thread(s) of its CTA wait at "
                    "the one in {other}: one of the two stands in a branch or a loop that not all "
                    "threads take",
                    barrier.arrived);
    } else if (barrier.expected != threads) {
        fail_at_two("divergent barrier", site, barrier.site,
                    "barrier %d is used for %d threads here and for %d in {other}", id, threads,
                    barrier.expected);
    }
    if (w->settings->check) {
        if (threads) {
            hand_over(w, barrier.handover, me->linear);
            note_user(barrier, id, threads, site);
        } else {
            hand_over_order(w, barrier.handover, me->linear);  // without the clocks: floor_clock
        }
        advance_clock(w, me->linear);
    }
    barrier.arrived++;
    if (wait) barrier.waiting.push_back(me);
    if (barrier.arrived >= (barrier.expected > 0 ? barrier.expected : (int)w->alive)) {
        release_barrier(w, barrier, me);
        if (wait && w->settings->schedule == random_order) run_others(w, me);
    } else if (wait) {
        run_others(w, me);
    }
}

void barrier_sync(int id, int threads, Site site) { arrive(id, threads, site, true); }
void barrier_arrive(int id, int threads, Site site) { arrive(id, threads, site, false); }

int barrier_reduce(int predicate, Reduction reduction, Site site) {
    Worker *w = worker;
    Barrier &barrier = w->barriers[0];
    if (!barrier.reducing) {
        barrier.reducing = true;
        barrier.reduced = reduction == Reduction::all;
    }
    switch (reduction) {
        case Reduction::count: barrier.reduced += predicate != 0; break;
        case Reduction::all: barrier.reduced &= predicate != 0; break;
        case Reduction::any: barrier.reduced |= predicate != 0; break;
    }
    if (barrier.arrived + 1 >= (int)w->alive) w->barrier_result = barrier.reduced;
    arrive(0, 0, site, true);
    const int result = w->barrier_result;
    arrive(0, 0, site, true);  // no thread starts the next reduction before all have read this one
    return result;
}

// One thread of each CTA adds 1 to a counter; CTA 0 adds so much that the sum flips the highest
// bit. The counter never has to be reset.
void grid_sync(Site site) {
    if (launch.num_ctas > launch.num_together) {
        fail_at("grid too large", site, "this_grid().sync() needs all %llu CTAs at once, and of this "
                "size at most %llu run together on the CPU: launch fewer",
                (unsigned long long)launch.num_ctas, (unsigned long long)launch.num_together);
    }
    barrier_sync(0, 0, site);
    if (self->linear == 0) {
        constexpr uint32_t FLIPS = 0x80000000u;
        uint32_t *const barrier = &launch.module->grid_barrier;
        const uint32_t count = worker->cta ? 1 : FLIPS - (uint32_t)(launch.num_ctas - 1);
        const NextValue add = [](uint64_t old, const void *more) -> uint64_t {
            return old + *(const uint32_t *)more;
        };
        thread_fence();
        const uint32_t before =
            (uint32_t)atomic_update(barrier, 4, add, &count, site, Order::acq_rel);
        while (!((before ^ (uint32_t)atomic_load(barrier, 4, site, Order::acquire)) & FLIPS)) {
        }
        thread_fence();
    }
    barrier_sync(0, 0, site);
}

}  // namespace coh
