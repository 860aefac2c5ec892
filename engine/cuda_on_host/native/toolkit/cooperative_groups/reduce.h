// cooperative_groups::reduce of tiles and coalesced threads, in order of rank.
#pragma once

#include "../cooperative_groups.h"

namespace cooperative_groups {

#define COH_OPERATION(NAME, EXPRESSION)                                                  \
    template <class Value = void>                                                        \
    struct NAME {                                                                        \
        Value operator()(Value a, Value b) const { return EXPRESSION; }                  \
    };                                                                                   \
    template <>                                                                          \
    struct NAME<void> {                                                                  \
        template <class Value>                                                           \
        Value operator()(Value a, Value b) const {                                       \
            return EXPRESSION;                                                           \
        }                                                                                \
    };
COH_OPERATION(plus, a + b)
COH_OPERATION(less, b < a ? b : a)
COH_OPERATION(greater, a < b ? b : a)
COH_OPERATION(bit_and, a & b)
COH_OPERATION(bit_or, a | b)
COH_OPERATION(bit_xor, a ^ b)
#undef COH_OPERATION

template <class Value, class Operation>
COH_INLINE Value reduce(const coalesced_group &group, Value v, Operation operation, COH_SITE) {
    Value values[32];
    const unsigned mask = group.coh_mask();
    details::gather(mask, v, values, site);
    Value result = values[__builtin_ctz(mask)];
    for (unsigned rest = mask & (mask - 1); rest; rest &= rest - 1) {
        result = operation(result, values[__builtin_ctz(rest)]);
    }
    return result;
}

}  // namespace cooperative_groups
