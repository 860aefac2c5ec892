"""Asynchronous copies and the barriers they complete on: cp.async, TMA, mbarrier."""

from __future__ import annotations

from engine.backends.cpu.ptx.forms import Form

_SMEM = "[.<shared|shared::cta>]"
_ANY_SMEM = "[.<smem:shared|shared::cta|shared::cluster>]"
_HINT = "[.L2::cache_hint]"
_PREFETCH = "[.L2::<64B|128B|256B>]"
_TO = "<to:shared::cluster|shared::cta>"
_WAIT = "[.<acquire|relaxed>.<cta|cluster>]"
_ARRIVE = "[.<release|relaxed>.<cta|cluster>]"

FORMS = [
    # ---- cp.async ----
    Form(f"cp.async.ca.<shared|shared::cta>.global{_HINT}{_PREFETCH}",
         "a:shared b:global size:imm source:u32=16 hint:b64?cache_hint",
         "coh::cp_async(a, b, size, source, coh_here);"),
    Form(f"cp.async.cg.<shared|shared::cta>.global{_HINT}{_PREFETCH}",
         "a:shared b:global size:imm source:u32=16 hint:b64?cache_hint",
         'static_assert(size == 16, "cp.async.cg copies 16 bytes"); '
         "coh::cp_async(a, b, size, source, coh_here);"),
    Form("cp.async.commit_group", "", "coh::cp_async_commit();"),
    Form("cp.async.wait_group", "n:imm", "coh::cp_async_wait(n);"),
    Form("cp.async.wait_all", "", "coh::cp_async_commit(); coh::cp_async_wait(0);"),
    Form(f"cp.async.mbarrier.arrive[.noinc]{_SMEM}.b64", "a:shared",
         "coh::mbarrier_arrive_after_copies(a, $noinc, coh_here);"),
    # ---- TMA ----
    Form(f"cp.async.bulk.tensor.<rank:1|2|3|4|5>d.{_TO}.global[.tile]"
         f".mbarrier::complete_tx::bytes{_HINT}",
         "a:@to map:tensor[rank] mbar:@to hint:b64?cache_hint",
         "coh::tma_load(a, map, mbar, $rank, map_at, coh_here);"),
    Form("cp.async.bulk.tensor.<rank:1|2|3|4|5>d.shared::cluster.global[.tile]"
         f".mbarrier::complete_tx::bytes.multicast::cluster{_HINT}",
         "a:cluster map:tensor[rank] mbar:cluster ctas:b16 hint:b64?cache_hint",
         "coh::tma_load_multicast(a, map, mbar, $rank, map_at, ctas, coh_here);"),
    Form(f"cp.async.bulk.tensor.<rank:1|2|3|4|5>d.global.shared::cta[.tile].bulk_group{_HINT}",
         "map:tensor[rank] a:shared hint:b64?cache_hint",
         "coh::tma_store(map, a, $rank, map_at, coh_here);"),
    Form(f"cp.async.bulk.prefetch.tensor.<rank:1|2|3|4|5>d.L2.global[.tile]{_HINT}",
         "map:tensor[rank] hint:b64?cache_hint", ";"),
    Form(f"cp.async.bulk.{_TO}.global.mbarrier::complete_tx::bytes{_HINT}",
         "a:@to b:global size:u32 mbar:@to hint:b64?cache_hint",
         "coh::bulk_load(a, b, size, mbar, coh_here);"),
    Form("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
         f"{_HINT}",
         "a:cluster b:global size:u32 mbar:cluster ctas:b16 hint:b64?cache_hint",
         "coh::bulk_load_multicast(a, b, size, mbar, ctas, coh_here);"),
    Form("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes",
         "a:cluster b:shared size:u32 mbar:cluster",
         "coh::bulk_send(a, b, size, mbar, coh_here);"),
    Form("st.async[.weak].shared::cluster.mbarrier::complete_tx::bytes[.v<n:2|4>]"
         ".<t:b32|u32|s32|f32|b64|u64|s64|f64>",
         "a:cluster v:t[n] mbar:cluster", "coh::store_async(a, v, sizeof v, mbar, coh_here);"),
    Form(f"cp.async.bulk.global.shared::cta.bulk_group{_HINT}",
         "a:global b:shared size:u32 hint:b64?cache_hint",
         "coh::bulk_store(a, b, size, coh_here);"),
    Form(f"cp.async.bulk.prefetch.L2.global{_HINT}", "a:global size:u32 hint:b64?cache_hint", ";"),
    Form("cp.async.bulk.commit_group", "", "coh::bulk_commit();"),
    Form("cp.async.bulk.wait_group[.read]", "n:imm", "coh::bulk_wait(n);"),
    # ---- mbarrier: waiting gives the other threads their turn, and may end without success ----
    Form(f"mbarrier.init{_SMEM}.b64", "a:shared n:u32",
         "coh::mbarrier_init(a, (int)n, coh_here);"),
    Form(f"mbarrier.inval{_SMEM}.b64", "a:shared", "coh::mbarrier_invalidate(a, coh_here);"),
    Form(f"mbarrier.arrive{_ARRIVE}{_SMEM}.b64", "=d:b64 a:shared n:u32=1",
         "coh::mbarrier_arrive(a, (int)n, 0, coh_here)"),
    Form(f"mbarrier.arrive.expect_tx{_ARRIVE}{_SMEM}.b64", "=d:b64 a:shared bytes:u32",
         "coh::mbarrier_arrive(a, 1, (int)bytes, coh_here)"),
    Form("mbarrier.arrive[.<release|relaxed>.cluster].shared::cluster.b64",
         "=d:b64 a:cluster n:u32=1", "coh::mbarrier_arrive(a, (int)n, 0, coh_here)"),
    Form("mbarrier.arrive.expect_tx[.<release|relaxed>.cluster].shared::cluster.b64",
         "=d:b64 a:cluster bytes:u32", "coh::mbarrier_arrive(a, 1, (int)bytes, coh_here)"),
    Form(f"mbarrier.expect_tx[.relaxed.<cta|cluster>]{_ANY_SMEM}.b64", "a:@smem bytes:u32",
         "coh::mbarrier_expect(a, (int)bytes, coh_here);"),
    Form(f"mbarrier.complete_tx[.relaxed.<cta|cluster>]{_ANY_SMEM}.b64", "a:@smem bytes:u32",
         "coh::mbarrier_expect(a, -(int)bytes, coh_here);"),
    Form(f"mbarrier.<test_wait|try_wait>.parity{_WAIT}{_SMEM}.b64",
         "=p:pred a:shared parity:u32 time:u32=0",
         "coh::mbarrier_try_wait(a, (int)parity, coh_here)"),
    Form(f"mbarrier.<test_wait|try_wait>{_WAIT}{_SMEM}.b64",
         "=p:pred a:shared state:b64 time:u32=0",
         "coh::mbarrier_try_wait(a, (int)state, coh_here)"),
]  # fmt: skip
