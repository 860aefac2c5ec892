// cooperative_groups::inclusive_scan and exclusive_scan of tiles and coalesced threads.
#pragma once

#include "reduce.h"

namespace cooperative_groups {

template <class Value, class Operation = plus<Value>>
COH_INLINE Value inclusive_scan(const coalesced_group &group, Value v,
                                Operation operation = Operation(), COH_SITE) {
    Value values[32];
    const unsigned mask = group.coh_mask();
    details::gather(mask, v, values, site);
    Value result = values[__builtin_ctz(mask)];
    for (unsigned rest = mask & (mask - 1) & (2u * details::lanes_before() + 1); rest;
         rest &= rest - 1) {
        result = operation(result, values[__builtin_ctz(rest)]);
    }
    return result;
}
template <class Value, class Operation = plus<Value>>
COH_INLINE Value exclusive_scan(const coalesced_group &group, Value v,
                                Operation operation = Operation(), COH_SITE) {
    const Value inclusive = inclusive_scan(group, v, operation, site);
    const Value before = group.shfl_up(inclusive, 1, site);
    return group.thread_rank() == 0 ? Value() : before;
}

}  // namespace cooperative_groups
