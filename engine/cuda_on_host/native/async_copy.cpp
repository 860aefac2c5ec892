// cp.async: the bytes are copied only when the thread waits for them, so that a read without a wait
// gets the old contents.
namespace coh {

static void copy_now(const PendingCopy &copy) {
    const Touching touching(copy.site);
    memcpy(copy.destination, copy.source, copy.source_bytes);
    memset((char *)copy.destination + copy.source_bytes, 0, copy.bytes - copy.source_bytes);
}

void cp_async(void *destination, const void *source, unsigned bytes, unsigned source_bytes,
              Site site) {
    Worker *w = worker;
    Fiber *me = current_fiber();
    if (bytes != 4 && bytes != 8 && bytes != 16) {
        fail_at("bad cp.async", site, "cp.async copies 4, 8 or 16 bytes, not %u", bytes);
    }
    if (source_bytes > bytes) source_bytes = bytes;
    if (((uintptr_t)destination | (uintptr_t)source) & (bytes - 1)) {
        fail_at("misaligned address", site, "cp.async of %u bytes to %p from %p needs both aligned "
                "to its size", bytes, destination, source);
    }
    shared_address(destination, site);  // fails if it is not in shared memory
    if (w->settings->check) {
        if (source_bytes) check_access(source, source_bytes, AccessKind::read, site);
        check_access(destination, bytes, AccessKind::write, site);
        mark_copy_pending(destination, bytes);
    }
    me->copies.push_back(PendingCopy{destination, source, bytes, source_bytes, site});
    // The copy may also complete at once: the random schedule tries both.
    if (w->settings->schedule == random_order && (random_bits(w) & 1)) copy_now(me->copies.back());
}

void land_copies(Fiber *fiber, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const PendingCopy &copy = fiber->copies[i];
        copy_now(copy);
        check_access(copy.destination, copy.bytes, AccessKind::write, copy.site);
    }
    fiber->copies.erase(fiber->copies.begin(), fiber->copies.begin() + count);
}

void cp_async_commit() {
    Fiber *me = current_fiber();
    size_t committed = 0;
    for (const uint32_t group : me->copies_in_group) committed += group;
    me->copies_in_group.push_back((uint32_t)(me->copies.size() - committed));
}

void cp_async_wait(unsigned pending_groups) {
    Fiber *me = current_fiber();
    std::vector<uint32_t> &groups = me->copies_in_group;
    size_t landing = 0;
    while (groups.size() > pending_groups) {
        landing += groups.front();
        groups.erase(groups.begin());
    }
    if (landing) land_copies(me, landing);
}

}  // namespace coh
