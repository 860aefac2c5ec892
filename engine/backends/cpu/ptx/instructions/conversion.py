"""cvt, mov and cvta."""

from __future__ import annotations

from engine.backends.cpu.ptx.forms import Form

_INTEGERS = "u8|s8|u16|s16|u32|s32|u64|s64"
_FLOATS = "f16|bf16|f32|f64"
_ROUND = "rn|rz|rm|rp"
_TO_INTEGER = "rni|rzi|rmi|rpi"

FORMS = [
    Form(
        f"cvt[.sat].<u:{_INTEGERS}>.<t:{_INTEGERS}>",
        "=d:u a:t",
        "ptx::integer_to_integer<$sat, $u>(a)",
    ),
    Form(
        f"cvt.<i:{_TO_INTEGER}>[.ftz][.sat].<u:{_INTEGERS}>.<t:{_FLOATS}>",
        "=d:u a:t",
        "ptx::float_to_integer<$u, ptx::ToInteger::$i>(ptx::flush<$ftz>(a))",
    ),
    Form(
        f"cvt.<r:{_ROUND}>[.sat].<u:{_FLOATS}>.<t:{_INTEGERS}>",
        "=d:u a:t",
        "ptx::saturate<$sat>(ptx::integer_to_float<$u, ptx::Rounding::$r>(a))",
    ),
    *(
        Form(
            f"cvt.<i:{_TO_INTEGER}>[.ftz][.sat].<t:{t}>.{t}",
            "=d:t a:t",
            "ptx::saturate<$sat>(ptx::each([](auto x) { return "
            "ptx::round_to_integer<ptx::ToInteger::$i>(x); }, ptx::flush<$ftz>(a)))",
        )
        for t in ("f16", "f32", "f64")
    ),
    Form(
        f"cvt[.<r:{_ROUND}>][.ftz][.sat].<u:{_FLOATS}>.<t:{_FLOATS}>",
        "=d:u a:t",
        "ptx::flush<$ftz>(ptx::saturate<$sat>("
        "ptx::float_to_float<$u, ptx::Rounding::$r>(ptx::flush<$ftz>(a))))",
    ),
    *(
        Form(
            f"cvt.<r:rn|rz>{relu}{finite}.<u:f16|bf16>.f32",
            "=d:u a:f32",
            f"{limit}(ptx::relu<{on}>(ptx::narrow<$u, ptx::Rounding::$r>(a)))",
        )
        for relu, on, finite, limit in (
            (".relu", "true", "", ""),
            ("", "false", ".satfinite", "ptx::finite"),
            (".relu", "true", ".satfinite", "ptx::finite"),
        )
    ),
    # Two into one register: the first source becomes the upper half.
    Form(
        "cvt.<r:rn|rz>[.relu].<u:f16x2|bf16x2>.f32",
        "=d:u a:f32 b:f32",
        "using E = decltype(d.low); "
        "d.low = ptx::relu<$relu>(ptx::narrow<E, ptx::Rounding::$r>(b)); "
        "d.high = ptx::relu<$relu>(ptx::narrow<E, ptx::Rounding::$r>(a));",
    ),
    Form(
        "cvt.<r:rn|rz>[.relu].satfinite.<u:f16x2|bf16x2>.f32",
        "=d:u a:f32 b:f32",
        "using E = decltype(d.low); "
        "d.low = ptx::finite(ptx::relu<$relu>(ptx::narrow<E, ptx::Rounding::$r>(b))); "
        "d.high = ptx::finite(ptx::relu<$relu>(ptx::narrow<E, ptx::Rounding::$r>(a)));",
    ),
    Form(
        "cvt.rn.satfinite[.relu].<u:e4m3x2|e5m2x2>.f32",
        "=d:u a:f32 b:f32",
        "using E = decltype(d.low); d.low = ptx::narrow_to_8_bits<E>(ptx::relu<$relu>(b)); "
        "d.high = ptx::narrow_to_8_bits<E>(ptx::relu<$relu>(a));",
    ),
    Form(
        "cvt.rn.satfinite[.relu].<u:e4m3x2|e5m2x2>.f16x2",
        "=d:u a:f16x2",
        "using E = decltype(d.low); const auto v = ptx::relu<$relu>(a); "
        "d.low = ptx::narrow_to_8_bits<E>(ptx::widen(v.low)); "
        "d.high = ptx::narrow_to_8_bits<E>(ptx::widen(v.high));",
    ),
    Form(
        "cvt.rn[.relu].f16x2.<t:e4m3x2|e5m2x2>",
        "=d:f16x2 a:t",
        "d.low = ptx::relu<$relu>(ptx::narrow<ptx::F16>(ptx::widen(a.low))); "
        "d.high = ptx::relu<$relu>(ptx::narrow<ptx::F16>(ptx::widen(a.high)));",
    ),
    Form(
        "cvt.<r:rn|rz>[.satfinite][.relu].tf32.f32",
        "=d:tf32 a:f32",
        "ptx::to_tf32(ptx::relu<$relu>(a), ptx::Rounding::$r)",
    ),
    Form("cvt.rna[.satfinite].tf32.f32", "=d:tf32 a:f32", "ptx::to_tf32(a, ptx::Rounding::none)"),
    # ---- mov ----
    Form("mov.<t:pred|b16|b32|b64|b128|u16|s16|u32|s32|u64|s64|f32|f64>", "=d:t a:t", "a"),
    *(
        form
        for t, part, n in (("b16", "b8", 2), ("b32", "b16", 2), ("b32", "b8", 4), ("b64", "b32", 2),
                           ("b64", "b16", 4), ("b128", "b64", 2), ("b128", "b32", 4))
        for form in (
            Form(f"mov.<{t}|u{t[1:]}>", f"=d:{part}[{n}] a:{t}", "ptx::unpack(d, a);"),
            Form(f"mov.<{t}|u{t[1:]}>", f"=d:{t} a:{part}[{n}]", "ptx::pack<decltype(d)>(a)"),
        )
    ),
    # ---- addresses ----
    Form("cvta.to.<shared|shared::cta>.<t:u32|u64>", "=d:t a:u64",
         "($t)coh::shared_address((const void *)a, coh_here)"),
    Form("cvta.<shared|shared::cta>.u64", "=d:u64 a:u64",
         "(uint64_t)coh::shared_pointer(a, coh_here)"),
    Form("cvta[.to].<global|const|param|local>.u64", "=d:u64 a:u64", "a"),
    Form("isspacep.<shared|shared::cta>", "=d:pred a:u64", "ptx::is_in_shared_memory(a)"),
    Form("isspacep.shared::cluster", "=d:pred a:u64",
         "coh::is_in_cluster_memory((const void *)a)"),
    Form("isspacep.global", "=d:pred a:u64", "!coh::is_in_cluster_memory((const void *)a)"),
]  # fmt: skip
