"""PTX instructions, their results computed by NumPy or Python, and the kernel that runs them.

A case is the text of an asm statement: `%0` is its output and `%1`, `%2`, … its inputs. Each of the
32 lanes has different values; the first ones are special values.
"""

# ruff: noqa: E501  a case is a line

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

LANES = 32
_U32 = 0xFFFFFFFF
# kind -> (NumPy type of the bits, asm constraint)
KINDS = {
    "u16": (np.uint16, "h"), "s16": (np.int16, "h"), "f16": (np.float16, "h"), "bf16": (np.uint16, "h"),
    "u32": (np.uint32, "r"), "s32": (np.int32, "r"), "f32": (np.float32, "f"), "f64": (np.float64, "d"),
    "u64": (np.uint64, "l"), "s64": (np.int64, "l"),
}  # fmt: skip
C_TYPES = {"h": "unsigned short", "r": "unsigned", "f": "float", "d": "double",
           "l": "unsigned long long"}  # fmt: skip


@dataclass(frozen=True)
class Case:
    ptx: str
    out: str  # a kind
    inputs: tuple[str, ...]
    expected: Callable[..., object]  # of one lane's inputs as Python numbers
    relative_error: float = 0.0

    @property
    def name(self) -> str:
        return self.ptx.replace("\n", " ")[:90]


def values(kind: str, seed: int) -> np.ndarray:
    """Return 32 values, special ones first, in an order that pairs operands differently."""
    rng = np.random.default_rng(seed)
    dtype = KINDS[kind][0]
    if kind == "bf16":
        return (values("f32", seed).view(np.uint32) >> 16).astype(np.uint16)
    if dtype in (np.float16, np.float32, np.float64):
        tiny = {np.float16: 1e-7, np.float32: 1e-40, np.float64: 1e-310}[dtype]
        special = [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, tiny, -tiny, 3e4, 0.1]
        drawn = rng.standard_normal(LANES) * 10.0 ** rng.integers(-3, 3, LANES)
        drawn[: len(special)] = np.roll(special, seed)
        return drawn.astype(dtype)
    limits = np.iinfo(dtype)
    drawn = rng.integers(limits.min, limits.max, LANES, dtype=dtype, endpoint=True)
    special = np.array([0, 1, 2, 7, 31, limits.max, limits.min, limits.max // 3, 100], dtype)
    drawn[: len(special)] = np.roll(special, seed)
    return drawn


def source(cases: list[Case]) -> str:
    """Return a kernel `cases(in, out)`: [case, operand, lane] and [case, lane], 8 bytes a value."""
    body = []
    for number, case in enumerate(cases):
        kinds = [KINDS[kind][1] for kind in (case.out, *case.inputs)]
        text = case.ptx.replace("\n", "\\n")
        inputs = ", ".join(f'"{k}"(a{i})' for i, k in enumerate(kinds[1:]))
        body.append("{")
        for i, k in enumerate(kinds[1:]):
            body.append(f"  {C_TYPES[k]} a{i} = read<{C_TYPES[k]}>(in, {number}, {i}, lane);")
        body.append(f"  {C_TYPES[kinds[0]]} d;")
        body.append(f'  asm volatile("{text}" : "={kinds[0]}"(d) : {inputs} : "memory");')
        body.append(f"  write(out, {number}, lane, d);")
        body.append("}")
    return _PRELUDE + "\n".join(body) + "\n}\n"


_PRELUDE = """
typedef unsigned long long u64;
template <class T> __device__ T read(const u64 *in, int number, int operand, int lane) {
    return *reinterpret_cast<const T *>(&in[(number * 4 + operand) * 32 + lane]);
}
template <class T> __device__ void write(u64 *out, int number, int lane, T v) {
    u64 bits = 0;
    *reinterpret_cast<T *>(&bits) = v;
    out[number * 32 + lane] = bits;
}
extern "C" __global__ void cases(const u64 *in, u64 *out) {
    const int lane = threadIdx.x;
"""


# ---- definitions ----
def wrap(value: int, kind: str) -> int:
    bits = int(kind[1:])
    value &= (1 << bits) - 1
    return value - (1 << bits) if kind[0] == "s" and value >> (bits - 1) else value


def bf16(bits: int) -> float:
    return float(np.array([int(bits) << 16], np.uint32).view(np.float32)[0])


def to_bf16(value: float) -> int:
    bits = int(np.array([value], np.float32).view(np.uint32)[0])
    if value != value:
        return 0x7FFF
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 & 0xFFFF


def rounded(exact: Fraction | float, mode: str) -> float:
    """Return an exact number rounded to float32 in a rounding mode."""
    if not isinstance(exact, Fraction):
        return exact  # NaN or infinity
    nearest = np.float32(float(exact))  # corrected below
    around = [
        np.nextafter(nearest, np.float32(-np.inf)),
        nearest,
        np.nextafter(nearest, np.float32(np.inf)),
    ]
    finite = [x for x in around if np.isfinite(x)]
    below = [x for x in finite if Fraction(float(x)) <= exact]
    above = [x for x in finite if Fraction(float(x)) >= exact]
    if mode == "rz":
        mode = "rm" if exact > 0 else "rp"
    if mode == "rm":
        return float(max(below))
    if mode == "rp":
        return float(min(above))
    return float(
        min(finite, key=lambda x: (abs(Fraction(float(x)) - exact), int(x.view(np.uint32)) & 1))
    )


def in_mode(operation: Callable[..., Fraction], mode: str) -> Callable[..., float]:
    def function(*operands: float) -> float:
        if not all(np.isfinite(operands)):
            with np.errstate(all="ignore"):
                return float(operation(*(np.float64(x) for x in operands)))
        exact = operation(*(Fraction(x) for x in operands))
        if exact == 0:
            with np.errstate(all="ignore"):
                return float(operation(*(np.float64(x) for x in operands)))
        return rounded(exact, mode)

    return function


def ftz(x: float) -> float:
    return float(np.copysign(0.0, x)) if abs(x) < 2.0**-126 else x


def pair(operation: Callable[..., float]) -> Callable[..., int]:
    """Return the operation on packed float16: on both halves, rounded once."""

    def function(*words: int) -> int:
        halves = [np.array([w], np.uint32).view(np.float16).astype(np.float64) for w in words]
        with np.errstate(all="ignore"):
            result = np.array([operation(*(h[i] for h in halves)) for i in range(2)], np.float16)
            bits = np.where(np.isnan(result), np.uint16(0x7FFF), result.view(np.uint16))
            return int(bits.view(np.uint32)[0])

    return function


def clamp(value: float, kind: str) -> int:
    limits = np.iinfo(KINDS[kind][0])
    if value != value:
        return 0
    return int(min(max(value, limits.min), limits.max)) if np.isfinite(value) else (
        limits.max if value > 0 else limits.min)  # fmt: skip


def truncate(x: float) -> float:
    return float(np.trunc(x))


def safe(function: Callable[..., float]) -> Callable[..., float]:
    def wrapped(*operands: float) -> float:
        with np.errstate(all="ignore"):
            return float(function(*(np.float64(x) for x in operands)))

    return wrapped


def permute(a: int, b: int, selector: int) -> int:
    data = (b << 32 | a).to_bytes(8, "little")
    result = []
    for i in range(4):
        nibble = selector >> 4 * i & 15
        byte = data[nibble & 7]
        result.append((255 if byte & 128 else 0) if nibble & 8 else byte)
    return int.from_bytes(bytes(result), "little")


def bytes_of(word: int, signed: bool) -> list[int]:
    return [
        int.from_bytes([b], "little", signed=signed) for b in (word & _U32).to_bytes(4, "little")
    ]


def quotient(a: int, b: int) -> int:
    return -1 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def maximum(x: float, y: float) -> float:
    if x != x or y != y:
        return y if x != x else x
    return max(x, y, key=lambda v: (v, np.copysign(1, v)))


def field(v: int, begin: int, length: int) -> int:
    return v >> begin & ((1 << length) - 1)


def signed_field(v: int, begin: int, length: int) -> int:
    bits = field(v & _U32, begin, length)
    return bits - (1 << length) if length and bits >> (length - 1) else bits


def _three(opcode: str, kind: str, function: Callable[..., int], count: int = 2) -> Case:
    places = ", ".join(f"%{i + 1}" for i in range(count))
    return Case(f"{opcode}.{kind} %0, {places};", kind, (kind,) * count,
                lambda *x: wrap(function(*x), kind))  # fmt: skip


def _bits(kind: str) -> str:
    return "b" + kind[1:]


INTEGERS = [
    *(_three("add", kind, lambda a, b: a + b) for kind in ("u16", "s16", "u32", "s32", "u64", "s64")),
    *(_three("sub", kind, lambda a, b: a - b) for kind in ("u16", "s32", "u64")),
    *(_three("mul.lo", kind, lambda a, b: a * b) for kind in ("u16", "s16", "u32", "s32", "s64")),
    *(_three("mul.hi", kind, lambda a, b, n=int(kind[1:]): a * b >> n) for kind in ("u32", "s32", "u64", "s64")),
    *(_three("mad.lo", kind, lambda a, b, c: a * b + c, 3) for kind in ("u32", "s32", "u64")),
    _three("mad.hi", "s32", lambda a, b, c: (a * b >> 32) + c, 3),
    _three("sad", "s32", lambda a, b, c: abs(a - b) + c, 3),
    Case("mul.wide.u32 %0, %1, %2;", "u64", ("u32", "u32"), lambda a, b: a * b),
    Case("mul.wide.s32 %0, %1, %2;", "s64", ("s32", "s32"), lambda a, b: a * b),
    Case("mul.wide.s16 %0, %1, %2;", "s32", ("s16", "s16"), lambda a, b: a * b),
    Case("mad.wide.s32 %0, %1, %2, %3;", "s64", ("s32", "s32", "s64"), lambda a, b, c: wrap(a * b + c, "s64")),
    Case("mul24.lo.s32 %0, %1, %2;", "s32", ("s32", "s32"),
         lambda a, b: wrap(wrap(a << 8, "s32") // 256 * (wrap(b << 8, "s32") // 256), "s32")),
    Case("add.sat.s32 %0, %1, %2;", "s32", ("s32", "s32"), lambda a, b: min(max(a + b, -(2**31)), 2**31 - 1)),
    Case("sub.sat.s32 %0, %1, %2;", "s32", ("s32", "s32"), lambda a, b: min(max(a - b, -(2**31)), 2**31 - 1)),
    _three("div", "s32", quotient),
    _three("div", "u32", quotient),
    _three("rem", "s32", lambda a, b: a if b == 0 else a - b * quotient(a, b)),
    _three("rem", "u64", lambda a, b: a if b == 0 else a % b),
    *(_three("min", kind, min) for kind in ("u32", "s32", "s64")),
    *(_three("max", kind, max) for kind in ("u16", "u32", "s32")),
    _three("abs", "s32", abs, 1),
    _three("neg", "s16", lambda a: -a, 1),
    Case("dp4a.u32.u32 %0, %1, %2, %3;", "u32", ("u32", "u32", "u32"),
         lambda a, b, c: wrap(c + sum(x * y for x, y in zip(bytes_of(a, False), bytes_of(b, False), strict=True)), "u32")),
    Case("dp4a.s32.u32 %0, %1, %2, %3;", "s32", ("s32", "u32", "s32"),
         lambda a, b, c: wrap(c + sum(x * y for x, y in zip(bytes_of(a, True), bytes_of(b, False), strict=True)), "s32")),
    # Extended precision: 64 bits by halves.
    Case("{ .reg .u32 al, ah, bl, bh; mov.b64 {al, ah}, %1; mov.b64 {bl, bh}, %2;"
         " add.cc.u32 al, al, bl; addc.u32 ah, ah, bh; mov.b64 %0, {al, ah}; }",
         "u64", ("u64", "u64"), lambda a, b: wrap(a + b, "u64")),
    Case("{ .reg .u32 al, ah, bl, bh; mov.b64 {al, ah}, %1; mov.b64 {bl, bh}, %2;"
         " sub.cc.u32 al, al, bl; subc.u32 ah, ah, bh; mov.b64 %0, {al, ah}; }",
         "u64", ("u64", "u64"), lambda a, b: wrap(a - b, "u64")),
    Case("{ .reg .u32 l, h; mad.lo.cc.u32 l, %1, %2, %3; madc.hi.u32 h, %1, %2, 0; mov.b64 %0, {l, h}; }",
         "u64", ("u32", "u32", "u32"), lambda a, b, c: a * b + c),
    Case("{ .reg .u32 x, y; add.cc.u32 x, %1, %2; addc.cc.u32 y, %1, %2; addc.u32 %0, 0, 0; }", "u32",
         ("u32", "u32"), lambda a, b: (a + b + (a + b >> 32)) >> 32),
]  # fmt: skip

BITS = [
    *(Case(f"{op}.b{n} %0, %1, %2;", f"u{n}", (f"u{n}",) * 2, f)
      for n in (16, 32, 64)
      for op, f in (("and", lambda a, b: a & b), ("or", lambda a, b: a | b), ("xor", lambda a, b: a ^ b))),
    Case("not.b32 %0, %1;", "u32", ("u32",), lambda a: ~a & _U32),
    Case("cnot.b32 %0, %1;", "u32", ("u32",), lambda a: int(a == 0)),
    *(Case(f"shl.b32 %0, %1, {n};", "u32", ("u32",), lambda a, n=n: (a << n) & _U32) for n in (0, 5, 32, 40)),
    *(Case(f"shr.u32 %0, %1, {n};", "u32", ("u32",), lambda a, n=n: a >> n) for n in (3, 35)),
    *(Case(f"shr.s32 %0, %1, {n};", "s32", ("s32",), lambda a, n=n: a >> n) for n in (3, 35)),
    Case("shr.b64 %0, %1, 33;", "u64", ("u64",), lambda a: a >> 33),
    Case("shf.l.wrap.b32 %0, %1, %2, 40;", "u32", ("u32", "u32"), lambda a, b: ((b << 32 | a) << 8) >> 32 & _U32),
    Case("shf.r.clamp.b32 %0, %1, %2, 40;", "u32", ("u32", "u32"), lambda _a, b: b),
    Case("shf.r.wrap.b32 %0, %1, %2, 5;", "u32", ("u32", "u32"), lambda a, b: (b << 32 | a) >> 5 & _U32),
    Case("popc.b32 %0, %1;", "u32", ("u32",), lambda a: a.bit_count()),
    Case("popc.b64 %0, %1;", "u32", ("u64",), lambda a: a.bit_count()),
    Case("clz.b32 %0, %1;", "u32", ("u32",), lambda a: 32 - a.bit_length()),
    Case("clz.b64 %0, %1;", "u32", ("u64",), lambda a: 64 - a.bit_length()),
    Case("brev.b32 %0, %1;", "u32", ("u32",), lambda a: int(f"{a:032b}"[::-1], 2)),
    Case("bfind.u32 %0, %1;", "u32", ("u32",), lambda a: (a.bit_length() - 1) & _U32),
    Case("bfind.shiftamt.u32 %0, %1;", "u32", ("u32",), lambda a: (32 - a.bit_length()) if a else _U32),
    Case("bfe.u32 %0, %1, 5, 9;", "u32", ("u32",), lambda a: field(a, 5, 9)),
    Case("bfe.s32 %0, %1, 5, 9;", "s32", ("s32",), lambda a: signed_field(a, 5, 9)),
    Case("bfe.s32 %0, %1, 28, 9;", "s32", ("s32",), lambda a: a >> 28),
    Case("bfi.b32 %0, %1, %2, 4, 8;", "u32", ("u32", "u32"), lambda a, b: b & ~0xFF0 | (a & 0xFF) << 4),
    *(Case(f"prmt.b32 %0, %1, %2, {hex(s)};", "u32", ("u32", "u32"), lambda a, b, s=s: permute(a, b, s))
      for s in (0x5410, 0x7632, 0x0123, 0xBA98)),
    Case("prmt.b32.rc8 %0, %1, 0, 2;", "u32", ("u32",), lambda a: (a >> 16 & 255) * 0x01010101),
    Case("prmt.b32.f4e %0, %1, %2, 1;", "u32", ("u32", "u32"), lambda a, b: (b << 32 | a) >> 8 & _U32),
    Case("lop3.b32 %0, %1, %2, %3, 0xEA;", "u32", ("u32",) * 3, lambda a, b, c: a & b | c),
    Case("lop3.b32 %0, %1, %2, %3, 0x96;", "u32", ("u32",) * 3, lambda a, b, c: a ^ b ^ c),
    Case("{ .reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, l}; }", "u32", ("u32",),
         lambda a: (a << 16 | a >> 16) & _U32),
    Case("{ .reg .b8 a<4>; mov.b32 {a0, a1, a2, a3}, %1; mov.b32 %0, {a3, a2, a1, a0}; }", "u32", ("u32",),
         lambda a: int.from_bytes(a.to_bytes(4, "little"), "big")),
]  # fmt: skip
