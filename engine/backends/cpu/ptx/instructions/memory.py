"""ld, st, atomics, cache control and fences. Cache operators and hints change no result."""

from __future__ import annotations

from engine.backends.cpu.ptx.forms import Form

_TYPES = "b8|u8|s8|b16|u16|s16|b32|u32|s32|b64|u64|s64|b128|f32|f64"
_SPACE = "[.<space:shared|shared::cta|shared::cluster|global|const>]"
_SCOPE = "<s:cta|cluster|gpu|sys>"
_ORDERED = 'ptx::order_of("$o"), ptx::scope_of("$s")'
_LEVELS = (
    "[.L1::<evict_normal|evict_unchanged|evict_first|evict_last|no_allocate>]"
    "[.L2::<evict_normal|evict_first|evict_last>][.L2::cache_hint]"
)
_PREFETCH = "[.L2::<64B|128B|256B>]"
_VECTOR = f"[.v<n:2|4|8>].<t:{_TYPES}>"
_LOAD = "=d:t[n] a:@space hint:b64?cache_hint"
_STORE = "a:@space v:t[n] hint:b64?cache_hint"

_INTEGER_ATOMICS = {
    "add": ("u32|s32|u64|s64", "coh::AtomicAdd"),
    "min": ("u32|s32|u64|s64", "coh::AtomicMin"),
    "max": ("u32|s32|u64|s64", "coh::AtomicMax"),
    "and": ("b32|b64", "coh::AtomicAnd"),
    "or": ("b32|b64", "coh::AtomicOr"),
    "xor": ("b32|b64", "coh::AtomicXor"),
    "inc": ("u32", "coh::AtomicInc"),
    "dec": ("u32", "coh::AtomicDec"),
    "exch": ("b32|b64", "coh::AtomicExchange"),
}


def _atomics() -> list[Form]:
    order = "[.<o:relaxed|acquire|release|acq_rel>]"
    before = f"{order}[.{_SCOPE}]{_SPACE}"
    forms = []
    for operation, (types, name) in _INTEGER_ATOMICS.items():
        call = f"coh::atomic(a, v, {name}(), coh_here, {_ORDERED});"
        forms.append(
            Form(f"atom{before}.{operation}.<t:{types}>", "=d:t a:@space v:t", f"d = {call}")
        )
        forms.append(Form(f"red{before}.{operation}.<t:{types}>", "a:@space v:t", call))
    for types, noftz in (("f32|f64", ""), ("f16|bf16|f16x2|bf16x2", ".noftz")):
        call = f"coh::atomic(a, v, ptx::AtomicSum(), coh_here, {_ORDERED});"
        syntax = f"{before}.add{noftz}.<t:{types}>"
        forms.append(Form(f"atom{syntax}", "=d:t a:@space v:t", f"d = {call}"))
        forms.append(Form(f"red{syntax}", "a:@space v:t", call))
    cas = f"coh::atomic_cas<$t>(a, b, c, coh_here, {_ORDERED});"
    forms.append(Form(f"atom{before}.cas.<t:b16|b32|b64>", "=d:t a:@space b:t c:t", f"d = {cas}"))
    return forms  # fmt: skip


FORMS = [
    Form(f"ld[.weak]{_SPACE}[.<ca|cg|cs|lu|cv>][.nc]{_LEVELS}{_PREFETCH}{_VECTOR}",
         _LOAD, "ptx::load(d, a);"),
    Form(f"ld.volatile{_SPACE}{_PREFETCH}{_VECTOR}",
         "=d:t[n] a:@space", "ptx::load_volatile(d, a);"),
    Form(f"ld.<o:relaxed|acquire>.{_SCOPE}{_SPACE}{_LEVELS}{_PREFETCH}{_VECTOR}",
         _LOAD, f"ptx::load_strong(d, a, {_ORDERED}, coh_here);"),
    Form(f"ldu[.global]{_VECTOR}", "=d:t[n] a:global", "ptx::load(d, a);"),
    Form(f"st[.weak]{_SPACE}[.<wb|cg|cs|wt>]{_LEVELS}{_VECTOR}", _STORE, "ptx::store(a, v);"),
    Form(f"st.volatile{_SPACE}{_VECTOR}", "a:@space v:t[n]", "ptx::store_volatile(a, v);"),
    Form(f"st.<o:relaxed|release>.{_SCOPE}{_SPACE}{_LEVELS}{_VECTOR}", _STORE,
         f"ptx::store_strong(a, v, {_ORDERED}, coh_here);"),
    *_atomics(),
    # ---- cache control: nothing to do ----
    Form("prefetch[.global].<L1|L2|L2::evict_last|L2::evict_normal>", "a:global", ";"),
    Form("prefetch[.<const|param>].tensormap", "a:global", ";"),
    Form("prefetchu.L1", "a:global", ";"),
    Form("<discard|applypriority>[.global].<L2|L2::evict_normal>", "a:global size:imm", ";"),
    Form("createpolicy.fractional.L2::<evict_last|evict_normal|evict_first|evict_unchanged>"
         "[.L2::<evict_first|evict_unchanged>].b64", "=d:b64 fraction:f32=1", "0"),
    Form("createpolicy.range[.global].L2::<evict_last|evict_normal|evict_first|evict_unchanged>"
         "[.L2::<evict_first|evict_unchanged>].b64", "=d:b64 a:global primary:u32 total:u32", "0"),
    # ---- fences ----
    Form(f"fence[.<o:sc|acq_rel|acquire|release>].{_SCOPE}", "",
         'coh::thread_fence(ptx::scope_of("$s"), ptx::fence_order_of("$o"));'),
    Form("membar.cta", "", "coh::thread_fence(coh::Scope::cta);"),
    Form("membar.<gl|sys>", "", "coh::thread_fence();"),
    Form("fence.proxy.async[.<global|shared::cta|shared::cluster>]", "", "coh::proxy_fence();"),
    Form("fence.proxy.alias", "", ";"),
    Form("fence.mbarrier_init.release.cluster", "", "coh::mbarrier_init_fence();"),
    # ---- other CTAs of the cluster ----
    Form("mapa.shared::cluster.<t:u32|u64>", "=d:t a:t rank:u32",
         "coh::cluster_address(a, rank, coh_here)"),
    Form("mapa.u64", "=d:u64 a:u64 rank:u32",
         "(uint64_t)coh::cluster_pointer((const void *)a, rank, coh_here)"),
    Form("getctarank.shared::cluster.<t:u32|u64>", "=d:u32 a:t",
         "coh::cluster_rank_of(coh::cluster_memory(a, coh_here), coh_here)"),
    Form("getctarank.u64", "=d:u32 a:u64",
         "coh::cluster_rank_of((const void *)a, coh_here)"),
]  # fmt: skip
