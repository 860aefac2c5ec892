"""Tensor cores and the loads and stores of their fragments."""

from __future__ import annotations

from engine.backends.cpu.ptx.forms import Form

_E = "coh::Element::"


def _mma(k: int, a: str, b: str, accumulator: str) -> Form:
    """m16n8k`k`. A fragment's words hold 4 bytes of a row each."""
    bits = {"f16": 16, "bf16": 16, "tf32": 32}.get(a, 8)
    words = 16 * k * bits // 32 // 32
    sums = 2 if accumulator == "f16" else 4
    register = "b32" if accumulator == "f16" else accumulator
    kind = f"{accumulator}.{a}.{b}.{accumulator}"
    shape = f"{{{k}, {_E}{a}, {_E}{b}, {_E}{accumulator}}}"
    return Form(
        f"mma.sync.aligned.m16n8k{k}.row.col.{kind}",
        f"=d:{register}[{sums}] a:b32[{words}] b:b32[{words // 2}] c:{register}[{sums}]",
        f"coh::mma_sync({shape}, (uint32_t *)d, a, b, (const uint32_t *)c, coh_here);",
    )


def _wgmma(element: str) -> list[Form]:
    """m64nNk16 with FP32 sums; A comes from shared memory or from registers."""
    sizes = "|".join(str(n) for n in range(8, 257, 8))
    syntax = f"wgmma.mma_async.sync.aligned.m64n<n:{sizes}>k16.f32.{element}.{element}"
    code = (
        'static_assert(scale_a == 1 && scale_b == 1, "the CPU backend does not negate the operands '
        'of wgmma: the scale factors must be 1"); '
        "coh::wgmma(d, $n, {{{}, b, {}, transposed_b != 0, coh::Element::" + element + ", sum}}, "
        "coh_here);"
    )
    return [
        Form(
            syntax,
            "~d:f32[n/2] a:b64 b:b64 sum:pred scale_a:imm scale_b:imm "
            "transposed_a:imm transposed_b:imm",
            code.format("nullptr, a", "transposed_a != 0"),
        ),
        Form(
            syntax,
            "~d:f32[n/2] a:b32[4] b:b64 sum:pred scale_a:imm scale_b:imm transposed_b:imm",
            code.format("a, 0", "false"),
        ),
    ]  # fmt: skip


FORMS = [
    Form(
        "ldmatrix.sync.aligned.m8n8.x<n:1|2|4>[.trans].<shared|shared::cta>.b16",
        "=d:b32[n] a:shared",
        "coh::ldmatrix(d, $n, $trans, a, coh_here);",
    ),
    Form(
        "stmatrix.sync.aligned.m8n8.x<n:1|2|4>[.trans].<shared|shared::cta>.b16",
        "a:shared v:b32[n]",
        "coh::stmatrix(a, $n, $trans, v, coh_here);",
    ),
    *(
        _mma(k, element, element, sums)
        for k in (8, 16)
        for element, sums in (("f16", "f32"), ("f16", "f16"), ("bf16", "f32"))
    ),
    *(_mma(k, "tf32", "tf32", "f32") for k in (4, 8)),
    *(_mma(k, a, b, "s32") for k in (16, 32) for a in ("s8", "u8") for b in ("s8", "u8")),
    *(_mma(k, a, b, "f32") for k in (16, 32) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")),
    Form("wgmma.fence.sync.aligned", "", "coh::wgmma_fence(coh_here);"),
    Form("wgmma.commit_group.sync.aligned", "", "coh::wgmma_commit(coh_here);"),
    Form("wgmma.wait_group.sync.aligned", "n:imm", "coh::wgmma_wait(n, coh_here);"),
    *_wgmma("f16"),
    *_wgmma("bf16"),
]  # fmt: skip
