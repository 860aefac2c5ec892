// cooperative_groups::memcpy_async: cp.async distributed over the group's threads, one commit group
// per call.
#pragma once

#include "../cooperative_groups.h"

namespace cooperative_groups {

template <class Group>
COH_INLINE void memcpy_async(const Group &group, void *destination, const void *source,
                             size_t bytes, COH_SITE) {
    const size_t either = (size_t)destination | (size_t)source | bytes;
    const size_t piece = either % 16 == 0 ? 16 : either % 8 == 0 ? 8 : either % 4 == 0 ? 4 : 1;
    const bool is_asynchronous = piece > 1 && __isShared(destination) && !__isShared(source);
    const size_t step = group.size() * piece;
    for (size_t at = group.thread_rank() * piece; at < bytes; at += step) {
        char *to = (char *)destination + at;
        const char *from = (const char *)source + at;
        if (is_asynchronous) coh::cp_async(to, from, (unsigned)piece, (unsigned)piece, site);
        else for (size_t i = 0; i < piece; i++) to[i] = from[i];
    }
    coh::cp_async_commit();
}
template <class Group>
COH_INLINE void wait(const Group &group, COH_SITE) {
    coh::cp_async_wait(0);
    group.sync(site);
}
template <unsigned int Pending, class Group>
COH_INLINE void wait_prior(const Group &group, COH_SITE) {
    coh::cp_async_wait(Pending);
    group.sync(site);
}

}  // namespace cooperative_groups
