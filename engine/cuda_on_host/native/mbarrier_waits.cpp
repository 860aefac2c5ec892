// Explains a race with a copy: the mbarrier phase that counted the copy, and the phases that the
// thread has waited for.
namespace coh {

void note_wait(const Mbarrier &mbarrier, const Fiber *fiber, Site site) {
    auto &waits = hopper_of(mbarrier.owner).last_waits;
    waits.resize(mbarrier.owner->num_threads);
    waits[fiber->linear] = LastWait{mbarrier.offset, (long long)mbarrier.completed - 1, site};
}

void note_landed(const Mbarrier &mbarrier, const PendingTile &tile, long long bytes) {
    auto &landed = hopper_of(mbarrier.owner).landed;
    const LandedTile now{(const char *)tile.shared, (size_t)bytes, mbarrier.offset,
                         (long long)mbarrier.completed};
    for (LandedTile &earlier : landed) {
        if (earlier.begin == now.begin) return void(earlier = now);
    }
    landed.push_back(now);
}

static const Mbarrier *mbarrier_at(const HopperState &state, uint32_t offset) {
    for (const Mbarrier &m : state.mbarriers) {
        if (m.offset == offset) return &m;
    }
    return nullptr;
}

// "the mbarrier of v16.cu:90 (number 2 of 4)": several may be initialised on one line.
static void name_mbarrier(const HopperState &state, const Mbarrier &mbarrier, char *text,
                          size_t size) {
    const auto &all = state.mbarriers;
    auto same_line = [&](const Mbarrier &other) { return other.site == mbarrier.site; };
    const auto count = std::count_if(all.begin(), all.end(), same_line);
    const auto number = std::count_if(all.data(), &mbarrier + 1, same_line);
    const int used = snprintf(text, size, "the mbarrier of %s:%d", mbarrier.site.file,
                              mbarrier.site.line);
    if (count > 1 && used > 0 && (size_t)used < size) {
        snprintf(text + used, size - used, " (number %td of %td)", number, count);
    }
}

// For a copy to `pointer`, in flight or complete: the phase that this thread should have waited for
// and the one that it did wait for. False if no copy is known.
bool describe_missed_wait(const void *pointer, char *text, size_t size) {
    const Worker *owner = owner_of(pointer);
    if (!owner || !owner->hopper) return false;
    const HopperState &state = *owner->hopper;
    auto holds = [&](const char *begin, size_t bytes) {
        return (size_t)((const char *)pointer - begin) < bytes;
    };
    const Mbarrier *mbarrier = nullptr;
    long long phase = 0;
    for (const LandedTile &tile : state.landed) {
        if (!holds(tile.begin, tile.bytes)) continue;
        mbarrier = mbarrier_at(state, tile.offset);
        phase = tile.phase;
    }
    for (const Mbarrier &m : state.mbarriers) {
        for (const PendingTile &tile : m.tiles) {
            if (!holds((const char *)tile.shared, (size_t)tile_bytes(tile.map))) continue;
            mbarrier = &m;
            phase = (long long)m.completed;
        }
    }
    if (!mbarrier) return false;
    char name[224], last[384];
    name_mbarrier(state, *mbarrier, name, sizeof name);
    const int used = snprintf(text, size, "the copy counts in phase %lld of %s, and ", phase, name);
    if (used < 0 || (size_t)used >= size) return true;
    const size_t thread = self->linear;
    const bool has_waited = owner == worker && thread < state.last_waits.size() &&
                            state.last_waits[thread].site.file;
    if (!has_waited) {
        snprintf(text + used, size - used, "this thread has waited for no mbarrier: the wait for "
                 "that phase is missing before this access");
        return true;
    }
    const LastWait &wait = state.last_waits[thread];
    if (wait.offset == mbarrier->offset) {
        snprintf(text + used, size - used, "this thread has waited for another phase of it, number "
                 "%lld, at %s:%d: look at the parity there, and for a wait that is missing since",
                 wait.phase, wait.site.file, wait.site.line);
        return true;
    }
    describe_last_wait(last, sizeof last);
    snprintf(text + used, size - used, "this thread has waited for another mbarrier or stage: %s. "
             "The wait for that phase is missing before this access, or looks at the wrong one",
             last);
    return true;
}

// For this thread: "its last wait, at v16.cu:120, is for phase 0 of the mbarrier of v16.cu:90".
void describe_last_wait(char *text, size_t size) {
    const HopperState &state = hopper();
    const size_t thread = self->linear;
    if (thread >= state.last_waits.size() || !state.last_waits[thread].site.file) {
        snprintf(text, size, "it has waited for no mbarrier");
        return;
    }
    const LastWait &wait = state.last_waits[thread];
    char name[224] = "an mbarrier that no longer exists";
    if (const Mbarrier *m = mbarrier_at(state, wait.offset)) {
        name_mbarrier(state, *m, name, sizeof name);
    }
    snprintf(text, size, "its last wait, at %s:%d, is for phase %lld of %s", wait.site.file,
             wait.site.line, wait.phase, name);
}

}  // namespace coh
