// wgmma: products queue for the tensor core of their partition.
#pragma once

#include "sm.h"

namespace attune_timing {
namespace {

// wgmma is asynchronous: the warp continues while the product is queued for the tensor core, in order of
// issue over all warps.
OUT_OF_LINE void Sm::product(Partition& p, Warp& w, int32_t id, int32_t op_index, uint32_t shared_bytes,
                             double now) {
    const double operands = shared_bytes / m.shared_bytes_per_cycle / PARTITIONS;
    p.products.push_back({id, op_index, now, operands});
    ++w.products_issued;
    if (in.ops[op_index].closes_group) w.product_groups.push_back(w.products_issued);
}

// Starts the earliest product that begins by `now`; false if there is none. Products start this late because
// only then all earlier uses of the shared-memory port are known.
inline bool Sm::begin_products(double now) {
    Partition* first = nullptr;
    double begin = NEVER;
    for (Partition& p : partitions) {
        if (p.products.empty()) continue;
        const double then = later(p.products.front().issued, p.pipe_free[TENSOR]);
        if (then < begin) begin = then, first = &p;
    }
    if (first == nullptr || begin > now) return false;
    Partition& p = *first;
    const Product product = p.products.front();
    p.products.pop_front();
    const double fed = take_port(begin, product.operands) + product.operands;
    p.pipe_free[TENSOR] = later(begin + in.ops[product.op].pipe_cycles, fed);
    update_free(p, TENSOR);
    p.changed = true;
    Warp& w = warps[product.warp];
    w.products.push_back(p.pipe_free[TENSOR] + m.warpgroup_cycles);
    follow(PRODUCT, w, product.op, begin, p.pipe_free[TENSOR]);
    if (w.products_awaited == w.products.size()) {
        w.products_awaited = 0;
        w.waits = false;
        release(w, w.products.back(), GMMA);
        if (w.position == w.end)
            retire(p, product.warp, w.released);
        else
            prepare(w);
    }
    return true;
}

// Waits until at most `allowed` groups of products are pending.
inline void Sm::await_products(Warp& w, size_t allowed) {
    if (w.product_groups.size() <= allowed) return;
    const size_t needed = w.product_groups[w.product_groups.size() - 1 - allowed];
    if (needed > w.products.size()) {
        w.products_awaited = needed;
        w.waits = true;
    } else if (needed > 0) {
        release(w, w.products[needed - 1], GMMA);
    }
}

}  // namespace
}  // namespace attune_timing
