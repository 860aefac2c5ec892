"""Cases of floating-point PTX: arithmetic, comparisons, control flow and conversions."""

# ruff: noqa: E501  a case is a line

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
from ptx_cases import Case, bf16, clamp, ftz, in_mode, maximum, pair, rounded, safe, to_bf16, wrap

_U32 = 0xFFFFFFFF

_ADD, _SUB, _MUL = (lambda a, b: a + b), (lambda a, b: a - b), (lambda a, b: a * b)
FLOATS = [
    *(Case(f"{op}.{mode}.f32 %0, %1, %2;", "f32", ("f32", "f32"), in_mode(f, mode))
      for mode in ("rn", "rz", "rm", "rp") for op, f in (("add", _ADD), ("sub", _SUB), ("mul", _MUL))),
    *(Case(f"fma.{mode}.f32 %0, %1, %2, %3;", "f32", ("f32",) * 3, in_mode(lambda a, b, c: a * b + c, mode))
      for mode in ("rn", "rz", "rm", "rp")),
    Case("add.f32 %0, %1, %2;", "f32", ("f32", "f32"), in_mode(_ADD, "rn")),
    Case("add.ftz.f32 %0, %1, %2;", "f32", ("f32", "f32"), lambda a, b: ftz(in_mode(_ADD, "rn")(ftz(a), ftz(b)))),
    Case("add.sat.f32 %0, %1, %2;", "f32", ("f32", "f32"),
         lambda a, b: (lambda s: min(s, 1.0) if s > 0 else 0.0)(in_mode(_ADD, "rn")(a, b))),
    Case("mul.f64 %0, %1, %2;", "f64", ("f64", "f64"), safe(_MUL)),
    Case("div.rn.f32 %0, %1, %2;", "f32", ("f32", "f32"), lambda a, b: float(safe(lambda x, y: np.float32(x) / np.float32(y))(a, b))),
    Case("div.rz.f32 %0, %1, 0f40E00000;", "f32", ("f32",), in_mode(lambda a: a / 7, "rz")),
    Case("div.full.f32 %0, %1, %2;", "f32", ("f32", "f32"), safe(lambda a, b: a / b), 3e-7),
    Case("rcp.approx.ftz.f32 %0, %1;", "f32", ("f32",), lambda a: ftz(safe(lambda x: 1 / x)(ftz(a))), 3e-7),
    Case("sqrt.rn.f32 %0, %1;", "f32", ("f32",), safe(lambda a: np.sqrt(np.float32(a)))),
    Case("rsqrt.approx.f32 %0, %1;", "f32", ("f32",), safe(lambda a: 1 / np.sqrt(a)), 3e-7),
    Case("ex2.approx.f32 %0, %1;", "f32", ("f32",), safe(lambda a: np.float32(np.exp2(a))), 3e-7),
    Case("ex2.approx.ftz.f32 %0, %1;", "f32", ("f32",), lambda a: ftz(safe(lambda x: np.float32(np.exp2(x)))(ftz(a))), 3e-7),
    Case("lg2.approx.f32 %0, %1;", "f32", ("f32",), safe(np.log2), 1e-6),
    Case("sin.approx.f32 %0, %1;", "f32", ("f32",), safe(np.sin), 1e-5),
    Case("cos.approx.ftz.f32 %0, %1;", "f32", ("f32",), safe(np.cos), 1e-5),
    Case("tanh.approx.f32 %0, %1;", "f32", ("f32",), safe(np.tanh), 1e-6),
    Case("neg.f32 %0, %1;", "f32", ("f32",), lambda a: -a),
    Case("abs.f32 %0, %1;", "f32", ("f32",), abs),
    Case("copysign.f32 %0, %1, %2;", "f32", ("f32", "f32"), lambda a, b: float(np.copysign(b, a))),
    Case("max.f32 %0, %1, %2;", "f32", ("f32", "f32"), maximum),
    Case("min.f32 %0, %1, %2;", "f32", ("f32", "f32"), lambda a, b: -maximum(-a, -b)),
    Case("max.NaN.f32 %0, %1, %2;", "f32", ("f32", "f32"), lambda a, b: np.nan if a != a or b != b else maximum(a, b)),
    Case("add.rn.f16x2 %0, %1, %2;", "u32", ("u32", "u32"), pair(_ADD)),
    Case("mul.f16x2 %0, %1, %2;", "u32", ("u32", "u32"), pair(_MUL)),
    Case("add.f16 %0, %1, %2;", "f16", ("f16", "f16"), safe(_ADD)),
    Case("fma.rn.f16 %0, %1, %2, %3;", "f16", ("f16",) * 3, safe(lambda a, b, c: a * b + c)),
    Case("fma.rn.relu.f16 %0, %1, %2, %3;", "f16", ("f16",) * 3,
         safe(lambda a, b, c: (lambda s: s if s != s else max(s, 0.0))(a * b + c))),
    Case("max.f16x2 %0, %1, %2;", "u32", ("u32", "u32"), pair(maximum)),
    Case("add.rn.bf16 %0, %1, %2;", "bf16", ("bf16", "bf16"), lambda a, b: to_bf16(safe(_ADD)(bf16(a), bf16(b)))),
    Case("fma.rn.bf16x2 %0, {BOTH};".replace("{BOTH}", "%1, %1, %1"), "u32", ("u32",),
         lambda w: sum(to_bf16(safe(lambda a: a * a + a)(bf16(w >> s & 0xFFFF))) << s for s in (0, 16))),
    Case("ex2.approx.ftz.bf16 %0, %1;", "bf16", ("bf16",),
         lambda a: (lambda r: 0x7FFF if r != r else to_bf16(ftz(r)))(safe(np.exp2)(ftz(bf16(a))))),
]  # fmt: skip

_LESS = {"eq": lambda a, b: a == b, "ne": lambda a, b: a < b or a > b, "lt": lambda a, b: a < b,
         "ge": lambda a, b: a >= b, "neu": lambda a, b: a != b, "ltu": lambda a, b: not a >= b,
         "num": lambda a, b: a == a and b == b, "nan": lambda a, b: a != a or b != b}  # fmt: skip
COMPARISONS = [
    *(Case(f"{{ .reg .pred p; setp.{c}.f32 p, %1, %2; selp.u32 %0, 7, 9, p; }}", "u32", ("f32", "f32"),
           lambda a, b, f=f: 7 if f(a, b) else 9) for c, f in _LESS.items()),
    Case("{ .reg .pred p, q; setp.lt.s32 p|q, %1, %2; selp.b32 %0, %1, %2, q; }", "s32", ("s32", "s32"), max),
    Case("{ .reg .pred p; setp.lo.u32 p, %1, 100; setp.ne.and.u32 p, %1, 7, p; selp.u32 %0, 1, 0, p; }",
         "u32", ("u32",), lambda a: int(a < 100 and a != 7)),
    Case("{ .reg .pred p, q; setp.lt.s32 p, %1, 0; setp.eq.or.s32 q, %1, 5, !p; and.pred p, p, q;"
         " not.pred q, q; selp.u32 %0, 1, 0, q; }", "u32", ("s32",), lambda a: int(a < 0 and a != 5)),
    Case("set.gt.f16x2.f16x2 %0, %1, %2;", "u32", ("u32", "u32"), pair(lambda a, b: float(a > b))),
    Case("set.lt.u32.f32 %0, %1, %2;", "u32", ("f32", "f32"), lambda a, b: _U32 if a < b else 0),
    Case("set.ge.f32.s32 %0, %1, %2;", "f32", ("s32", "s32"), lambda a, b: float(a >= b)),
    Case("slct.s32.s32 %0, %1, %2, %3;", "s32", ("s32",) * 3, lambda a, b, c: a if c >= 0 else b),
    # Predicates, scopes, labels.
    Case("{ .reg .pred p; setp.ne.b32 p, %1, 0; mov.u32 %0, 3; @p mov.u32 %0, 4; @!p add.u32 %0, %0, 2; }",
         "u32", ("u32",), lambda a: 4 if a else 5),
    Case("{ .reg .b32 i; .reg .pred p; mov.u32 i, 0; mov.u32 %0, 0;\nagain: add.u32 %0, %0, i; add.u32 i, i, 1;"
         " setp.le.u32 p, i, 10; @p bra again; }", "u32", (), lambda: 55),
    Case("{ .reg .b32 %r<3>; mov.u32 %r0, %1; { .reg .b32 %r0; mov.u32 %r0, 5; } mov.u32 %0, %r0; }", "u32",
         ("u32",), lambda a: a),
]  # fmt: skip


def _f16(x: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.float16(np.float32(x)))


def _half_pair(a: float, b: float, convert: Callable[[float], int]) -> int:
    return convert(a) << 16 | convert(b)


def _f16_bits(x: float) -> int:
    with np.errstate(all="ignore"):
        return 0x7FFF if x != x else int(np.float16(np.float32(x)).view(np.uint16))


_E4M3 = sorted(
    (s * (m / 8 * 2**-6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7)), (s < 0) << 7 | e << 3 | m)
    for s in (1, -1) for e in range(16) for m in range(8) if (e, m) != (15, 7)
)  # fmt: skip


def to_e4m3(x: float) -> int:
    if x != x:
        return 0x7F
    code = min(_E4M3, key=lambda v: (abs(v[0] - min(max(x, -448), 448)), v[1] & 1))[1]
    return code & 0x7F | (0x80 if np.signbit(x) else 0)


CONVERSIONS = [
    Case("cvt.u32.u16 %0, %1;", "u32", ("u16",), lambda a: a),
    Case("cvt.s32.s16 %0, %1;", "s32", ("s16",), lambda a: a),
    Case("cvt.s64.s32 %0, %1;", "s64", ("s32",), lambda a: a),
    Case("cvt.u32.u64 %0, %1;", "u32", ("u64",), lambda a: a & _U32),
    Case("cvt.s8.s32 %0, %1;", "s32", ("s32",), lambda a: wrap(a, "s8")),
    Case("cvt.sat.s8.s32 %0, %1;", "s32", ("s32",), lambda a: min(max(a, -128), 127)),
    Case("cvt.sat.u8.s32 %0, %1;", "u32", ("s32",), lambda a: min(max(a, 0), 255)),
    Case("cvt.rn.f32.s32 %0, %1;", "f32", ("s32",), lambda a: float(np.float32(a))),
    *(Case(f"cvt.{m}.f32.u64 %0, %1;", "f32", ("u64",), lambda a, m=m: rounded(Fraction(a), m)) for m in ("rz", "rp")),
    Case("cvt.rn.f64.s64 %0, %1;", "f64", ("s64",), float),
    *(Case(f"cvt.{m}.s32.f32 %0, %1;", "s32", ("f32",), lambda a, f=f: clamp(safe(f)(a), "s32"))
      for m, f in (("rni", np.rint), ("rzi", np.trunc), ("rmi", np.floor), ("rpi", np.ceil))),
    Case("cvt.rzi.u32.f32 %0, %1;", "u32", ("f32",), lambda a: clamp(safe(np.trunc)(a), "u32")),
    Case("cvt.rzi.s64.f64 %0, %1;", "s64", ("f64",), lambda a: clamp(safe(np.trunc)(a), "s64")),
    Case("cvt.rni.f32.f32 %0, %1;", "f32", ("f32",), safe(np.rint)),
    Case("cvt.f64.f32 %0, %1;", "f64", ("f32",), float),
    Case("cvt.rn.f32.f64 %0, %1;", "f32", ("f64",), safe(np.float32)),
    Case("cvt.rz.f32.f64 %0, %1;", "f32", ("f64",), in_mode(lambda a: a, "rz")),
    Case("cvt.f32.f16 %0, %1;", "f32", ("f16",), float),
    Case("cvt.f32.bf16 %0, %1;", "f32", ("bf16",), bf16),
    Case("cvt.rn.f16.f32 %0, %1;", "f16", ("f32",), _f16),
    Case("cvt.rz.f16.f32 %0, %1;", "f16", ("f32",),
         lambda a: a if not np.isfinite(a) else (lambda h: h if abs(h) <= abs(a) else float(np.nextafter(np.float16(h), np.float16(0))))(_f16(a))),
    Case("cvt.rn.bf16.f32 %0, %1;", "bf16", ("f32",), to_bf16),
    Case("cvt.rn.relu.bf16.f32 %0, %1;", "bf16", ("f32",), lambda a: to_bf16(a if a != a or a > 0 else 0.0)),
    Case("cvt.rn.f16x2.f32 %0, %1, %2;", "u32", ("f32", "f32"), lambda a, b: _half_pair(a, b, _f16_bits)),
    Case("cvt.rn.bf16x2.f32 %0, %1, %2;", "u32", ("f32", "f32"), lambda a, b: _half_pair(a, b, to_bf16)),
    Case("cvt.rn.relu.f16x2.f32 %0, %1, %2;", "u32", ("f32", "f32"),
         lambda a, b: _half_pair(*(x if x != x or x > 0 else 0.0 for x in (a, b)), _f16_bits)),
    Case("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;", "u16", ("f32", "f32"), lambda a, b: to_e4m3(a) << 8 | to_e4m3(b)),
    Case("{ .reg .b16 p; cvt.rn.satfinite.e4m3x2.f32 p, %1, %1; cvt.rn.f16x2.e4m3x2 %0, p; }", "u32", ("f32",),
         lambda a: _half_pair(*({c: v for v, c in _E4M3}.get(to_e4m3(a), np.nan),) * 2, _f16_bits)
         if to_e4m3(a) not in (0x80, 0) else (0x80008000 if to_e4m3(a) else 0)),
    Case("cvt.rna.tf32.f32 %0, %1;", "u32", ("f32",),
         lambda a: int(np.float32(a).view(np.uint32)) if not np.isfinite(a)
         else (int(np.float32(a).view(np.uint32)) + 0x1000) & ~0x1FFF),
    Case("mov.b32 %0, %1;", "u32", ("f32",), lambda a: int(np.float32(a).view(np.uint32))),
    Case("mov.f32 %0, 0f3FC00000;", "f32", (), lambda: 1.5),
]  # fmt: skip
