"""What threads do together, and control flow."""

from __future__ import annotations

from engine.backends.cpu.ptx.forms import Form

# redux.sync: the operation on two values of type $t.
_REDUX = {
    "add": ("u32|s32", "x + y"),
    "min": ("u32|s32", "x < y ? x : y"),
    "max": ("u32|s32", "x < y ? y : x"),
    "and": ("b32", "x & y"),
    "or": ("b32", "x | y"),
    "xor": ("b32", "x ^ y"),
}

FORMS = [
    # ---- barriers ----
    Form("<bar|barrier>[.cta].sync[.aligned]", "id:u32 count:u32=0",
         "coh::barrier_sync((int)id, (int)count, coh_here);"),
    Form("<bar|barrier>[.cta].arrive[.aligned]", "id:u32 count:u32",
         "coh::barrier_arrive((int)id, (int)count, coh_here);"),
    Form("barrier.cluster.arrive[.<o:release|relaxed>][.aligned]", "",
         'coh::cluster_arrive(ptx::cluster_order_of("$o"), coh_here);'),
    Form("barrier.cluster.wait[.acquire][.aligned]", "", "coh::cluster_wait(coh_here);"),
    Form("bar.warp.sync", "mask:b32", "coh::warp_sync(mask, coh_here);"),
    # ---- warps ----
    Form("shfl.sync.<m:up|down|bfly|idx>.b32", "=d:b32|p:pred a:b32 b:u32 c:u32 mask:b32",
         "d = ptx::shuffle_lanes(coh::Shuffle::$m, a, b, c, mask, p, coh_here);"),
    Form("vote.sync.ballot.b32", "=d:b32 a:pred mask:b32", "coh::ballot(mask, a, coh_here)"),
    Form("vote.sync.any.pred", "=d:pred a:pred mask:b32", "coh::ballot(mask, a, coh_here) != 0"),
    Form("vote.sync.all.pred", "=d:pred a:pred mask:b32", "coh::ballot(mask, !a, coh_here) == 0"),
    Form("vote.sync.uni.pred", "=d:pred a:pred mask:b32",
         "bool all; ptx::match_all(mask, (uint32_t)a, all, coh_here); d = all;"),
    Form("match.any.sync.<t:b32|b64>", "=d:b32 a:t mask:b32", "ptx::match_any(mask, a, coh_here)"),
    Form("match.all.sync.<t:b32|b64>", "=d:b32|p:pred a:t mask:b32",
         "d = ptx::match_all(mask, a, p, coh_here);"),
    *(
        Form(f"redux.sync.{name}.<t:{types}>", "=d:t a:t mask:b32",
             f"auto join = []($t x, $t y) {{ return ($t)({operation}); }}; "
             "d = ptx::reduce_lanes(mask, a, join, coh_here);")
        for name, (types, operation) in _REDUX.items()
    ),
    Form("elect.sync", "=d:b32|p:pred mask:b32", "d = ptx::elect(mask, p, coh_here);"),
    Form("activemask.b32", "=d:b32", "coh::active_lanes(coh_here)"),
    # ---- the rest ----
    Form("nanosleep.u32", "time:u32", "coh::yield();"),
    Form("trap", "", 'coh::fail("trap", coh_here, "trap executed");'),
    Form("brkpt", "", 'coh::fail("trap", coh_here, "brkpt executed");'),
    Form("setmaxnreg.<inc|dec>.sync.aligned.u32", "n:imm",
         "coh::set_max_registers(n, coh_here);"),
    Form("griddepcontrol.<launch_dependents|wait>", "", ";"),  # launches run in order here
]  # fmt: skip
