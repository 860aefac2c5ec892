"""Arithmetic, logic, bits and comparisons."""

from __future__ import annotations

from engine.backends.cpu.ptx.forms import Form

_INTEGERS = "u16|s16|u32|s32|u64|s64"
_HALVES = "f16|f16x2|bf16|bf16x2"
_ROUND = "rn|rz|rm|rp"
_BITS = "b16|b32|b64"
_COMPARE = "eq|ne|lt|le|gt|ge|lo|ls|hi|hs|equ|neu|ltu|leu|gtu|geu|num|nan"
_IN = "=d:t a:t b:t"


def _float_pairs(opcode: str, function: str) -> list[Form]:
    """add, sub and mul of floating-point types."""

    def code(rounding: str, saturate: str, flush: str) -> str:
        a, b = (f"ptx::flush<{flush}>({x})" for x in "ab")
        value = f"ptx::{function}<ptx::Rounding::{rounding}>({a}, {b})"
        return f"ptx::flush<{flush}>(ptx::saturate<{saturate}>({value}))"

    return [
        Form(f"{opcode}[.<r:{_ROUND}>][.ftz][.sat].<t:f32>", _IN, code("$r", "$sat", "$ftz")),
        Form(f"{opcode}[.<r:rn>].<t:f64>", _IN, code("$r", "false", "false")),
        Form(f"{opcode}[.rn][.ftz][.sat].<t:{_HALVES}>", _IN, code("none", "$sat", "$ftz")),
    ]


def _unary(syntax: str, expression: str) -> Form:
    """An approximate function of a float, here the exact one; 16-bit types go through float."""
    function = f"[](auto x) {{ return {expression}; }}"
    code = f"ptx::flush<$ftz>(ptx::each({function}, ptx::flush<$ftz>(a)))"
    return Form(syntax, "=d:t a:t", code)


def _minima(opcode: str, function: str) -> list[Form]:
    value = f"ptx::{function}<$NaN>(ptx::flush<$ftz>(a), ptx::flush<$ftz>(b))"
    return [
        Form(f"{opcode}.<t:{_INTEGERS}>", _IN, f"ptx::{function}<false>(a, b)"),
        Form(f"{opcode}[.ftz][.NaN].<t:f32|{_HALVES}>", _IN, value),
        Form(f"{opcode}.<t:f64>", _IN, f"ptx::{function}<false>(a, b)"),
    ]


def _comparison(value: str) -> str:
    """setp: the result joined with c, and its complement joined with c."""
    return (
        f"const bool result = {value}; p = ptx::join<ptx::Join::$j>(result, c); "
        "q = ptx::join<ptx::Join::$j>(!result, c);"
    )


_FMA = "ptx::multiply_add<ptx::Rounding::$r>"
_FLUSHED = "ptx::flush<$ftz>(a), ptx::flush<$ftz>(b)"

FORMS = [
    # ---- integers ----
    Form(f"add.<t:{_INTEGERS}>", _IN, "ptx::add(a, b)"),
    Form("add.sat.<t:s32>", _IN, "ptx::saturated_sum<int32_t>((__int128)a + b)"),
    Form(f"sub.<t:{_INTEGERS}>", _IN, "ptx::subtract(a, b)"),
    Form("sub.sat.<t:s32>", _IN, "ptx::saturated_sum<int32_t>((__int128)a - b)"),
    Form(f"mul.lo.<t:{_INTEGERS}>", _IN, "ptx::multiply(a, b)"),
    Form(f"mul.hi.<t:{_INTEGERS}>", _IN, "ptx::multiply_high(a, b)"),
    *(
        Form(f"mul.wide.<t:{t}>", f"=d:{wide} a:t b:t", "ptx::multiply_wide<decltype(d)>(a, b)")
        for t, wide in (("u16", "u32"), ("s16", "s32"), ("u32", "u64"), ("s32", "s64"))
    ),
    Form(
        f"mad.lo.<t:{_INTEGERS}>", "=d:t a:t b:t c:t", "ptx::add(ptx::multiply(a, b), c)"
    ),
    Form(
        f"mad.hi.<t:{_INTEGERS}>", "=d:t a:t b:t c:t", "ptx::add(ptx::multiply_high(a, b), c)"
    ),
    *(
        Form(
            f"mad.wide.<t:{t}>",
            f"=d:{wide} a:t b:t c:{wide}",
            "ptx::add(ptx::multiply_wide<decltype(d)>(a, b), c)",
        )
        for t, wide in (("u16", "u32"), ("s16", "s32"), ("u32", "u64"), ("s32", "s64"))
    ),
    Form("mul24.lo.<t:u32|s32>", _IN, "ptx::multiply(($t)(a << 8) >> 8, ($t)(b << 8) >> 8)"),
    Form(f"div.<t:{_INTEGERS}>", _IN, "ptx::divide_integers(a, b)"),
    Form(f"rem.<t:{_INTEGERS}>", _IN, "ptx::remainder_of(a, b)"),
    Form("abs.<t:s16|s32|s64>", "=d:t a:t", "ptx::absolute(a)"),
    Form("neg.<t:s16|s32|s64>", "=d:t a:t", "ptx::negate(a)"),
    Form(
        f"sad.<t:{_INTEGERS}>",
        "=d:t a:t b:t c:t",
        "ptx::add(c, a < b ? ptx::subtract(b, a) : ptx::subtract(a, b))",
    ),
    *(
        Form(
            f"dp4a.{a}32.{b}32",
            "=d:b32 a:b32 b:b32 c:b32",
            f"ptx::dot_4<{signs[a]}, {signs[b]}>(a, b, c)",
        )
        for signs in ({"u": "uint8_t", "s": "int8_t"},)
        for a in "us"
        for b in "us"
    ),
    # ---- extended precision: the carry lives as long as the asm statement ----
    *(
        Form(
            f"{opcode}{cc}.<t:u32|s32|u64|s64>",
            _IN,
            f"bool carry = coh_carry; d = ptx::{function}(a, b, {use}, carry);{keep}",
        )
        for name, function in (("add", "add_with_carry"), ("sub", "subtract_with_borrow"))
        for opcode, cc, use, keep in (
            (name, ".cc", "false", " coh_carry = carry;"),
            (f"{name}c", ".cc", "true", " coh_carry = carry;"),
            (f"{name}c", "", "true", ""),
        )
    ),
    *(
        Form(
            f"{opcode}.<h:lo|hi>{cc}.<t:u32|s32|u64|s64>",
            "=d:t a:t b:t c:t",
            "bool carry = coh_carry; "
            f"d = ptx::add_with_carry(ptx::product_$h(a, b), c, {use}, carry);{keep}",
        )
        for opcode, cc, use, keep in (
            ("mad", ".cc", "false", " coh_carry = carry;"),
            ("madc", ".cc", "true", " coh_carry = carry;"),
            ("madc", "", "true", ""),
        )
    ),
    # ---- logic and bits ----
    *(
        Form(f"{opcode}.<t:{_BITS}>", _IN, f"($t)(a {sign} b)")
        for opcode, sign in (("and", "&"), ("or", "|"), ("xor", "^"))
    ),
    *(
        Form(f"{opcode}.<t:pred>", _IN, f"(bool)(a {sign} b)")
        for opcode, sign in (("and", "&"), ("or", "|"), ("xor", "^"))
    ),
    Form(f"not.<t:{_BITS}>", "=d:t a:t", "($t)~a"),
    Form("not.<t:pred>", "=d:t a:t", "!a"),
    Form(f"cnot.<t:{_BITS}>", "=d:t a:t", "($t)(a == 0)"),
    Form(f"shl.<t:{_BITS}>", "=d:t a:t b:u32", "ptx::shift_left(a, b)"),
    Form(f"shr.<t:{_BITS}|{_INTEGERS}>", "=d:t a:t b:u32", "ptx::shift_right(a, b)"),
    Form(
        "shf.<side:l|r>.<mode:wrap|clamp>.b32",
        "=d:b32 a:b32 b:b32 c:u32",
        'ptx::funnel_shift("$side"[0] == \'l\', "$mode"[0] == \'c\', a, b, c)',
    ),
    Form("popc.b32", "=d:u32 a:b32", "(uint32_t)__builtin_popcount(a)"),
    Form("popc.b64", "=d:u32 a:b64", "(uint32_t)__builtin_popcountll(a)"),
    Form("clz.<t:b32|b64>", "=d:u32 a:t", "ptx::leading_zeros(a)"),
    Form("brev.<t:b32|b64>", "=d:t a:t", "ptx::reversed(a)"),
    Form("bfind[.shiftamt].<t:u32|s32|u64|s64>", "=d:u32 a:t", "ptx::highest_bit(a, $shiftamt)"),
    Form("bfe.<t:u32|s32|u64|s64>", "=d:t a:t b:u32 c:u32", "ptx::bit_field(a, b, c)"),
    Form("bfi.<t:b32|b64>", "=f:t a:t b:t c:u32 d:u32", "ptx::insert_bit_field(a, b, c, d)"),
    Form(
        "prmt.b32[.<m:f4e|b4e|rc8|ecl|ecr|rc16>]",
        "=d:b32 a:b32 b:b32 c:b32",
        "ptx::byte_permute<ptx::Bytes::$m>(a, b, c)",
    ),
    Form("lop3.b32", "=d:b32 a:b32 b:b32 c:b32 table:imm", "ptx::logic_3(a, b, c, table)"),
    # ---- floating point ----
    *_float_pairs("add", "add"),
    *_float_pairs("sub", "subtract"),
    *_float_pairs("mul", "multiply"),
    Form(
        f"<fma|mad>[.<r:{_ROUND}>][.ftz][.sat].<t:f32>",
        "=d:t a:t b:t c:t",
        f"ptx::flush<$ftz>(ptx::saturate<$sat>({_FMA}({_FLUSHED}, ptx::flush<$ftz>(c))))",
    ),
    Form("<fma|mad>.<r:rn>.<t:f64>", "=d:t a:t b:t c:t", f"{_FMA}(a, b, c)"),
    Form(
        f"fma.<r:rn>[.ftz][.sat][.relu].<t:{_HALVES}>",
        "=d:t a:t b:t c:t",
        f"ptx::relu<$relu>(ptx::saturate<$sat>(ptx::flush<$ftz>("
        f"{_FMA}({_FLUSHED}, ptx::flush<$ftz>(c)))))",
    ),
    Form(
        f"div.<r:approx|full|{_ROUND}>[.ftz].<t:f32>",
        _IN,
        f"ptx::flush<$ftz>(ptx::divide<ptx::rounding(\"$r\")>({_FLUSHED}))",
    ),
    Form("div.<r:rn>.<t:f64>", _IN, "a / b"),
    Form(
        f"rcp.<r:approx|{_ROUND}>[.ftz].<t:f32>",
        "=d:t a:t",
        "ptx::flush<$ftz>(ptx::divide<ptx::rounding(\"$r\")>(1.0f, ptx::flush<$ftz>(a)))",
    ),
    Form("rcp.rn.<t:f64>", "=d:t a:t", "1.0 / a"),
    Form("rcp.approx.ftz.<t:f64>", "=d:t a:t", "1.0 / a"),
    Form(
        f"sqrt.<r:approx|{_ROUND}>[.ftz].<t:f32>",
        "=d:t a:t",
        "ptx::flush<$ftz>(ptx::square_root<ptx::rounding(\"$r\")>(ptx::flush<$ftz>(a)))",
    ),
    Form("sqrt.rn.<t:f64>", "=d:t a:t", "ptx::square_root(a)"),
    _unary("rsqrt.approx[.ftz].<t:f32|f64>", "1 / ::sqrt(x)"),
    _unary(f"ex2.approx[.ftz].<t:f32|{_HALVES}>", "::exp2f(x)"),
    _unary("lg2.approx[.ftz].<t:f32>", "::log2f(x)"),
    _unary("sin.approx[.ftz].<t:f32>", "::sinf(x)"),
    _unary("cos.approx[.ftz].<t:f32>", "::cosf(x)"),
    Form(
        f"tanh.approx.<t:f32|{_HALVES}>",
        "=d:t a:t",
        "ptx::each([](float x) { return ::tanhf(x); }, a)",
    ),
    Form(f"abs[.ftz].<t:f32|f64|{_HALVES}>", "=d:t a:t", "ptx::absolute(ptx::flush<$ftz>(a))"),
    Form(f"neg[.ftz].<t:f32|f64|{_HALVES}>", "=d:t a:t", "ptx::negate(ptx::flush<$ftz>(a))"),
    Form("copysign.<t:f32|f64>", _IN, "($t)::copysign(b, a)"),
    *_minima("min", "minimum"),
    *_minima("max", "maximum"),
    # ---- comparisons ----
    Form(
        f"setp.<k:{_COMPARE}>[.ftz].<t:{_BITS}|{_INTEGERS}|f32|f64|f16|bf16>",
        "=p:pred|q:pred a:t b:t",
        f"const bool result = ptx::compare<ptx::Compare::$k>({_FLUSHED}); p = result; q = !result;",
    ),
    Form(
        f"setp.<k:{_COMPARE}>.<j:and|or|xor>[.ftz].<t:{_BITS}|{_INTEGERS}|f32|f64|f16|bf16>",
        "=p:pred|q:pred a:t b:t c:pred",
        _comparison(f"ptx::compare<ptx::Compare::$k>({_FLUSHED})").replace("::$j", "::op_$j"),
    ),
    Form(
        f"set.<k:{_COMPARE}>[.ftz].<u:u32|s32|f32>.<t:{_BITS}|{_INTEGERS}|f32|f64|f16|bf16>",
        "=d:u a:t b:t",
        f"ptx::set<ptx::Compare::$k, $u>({_FLUSHED})",
    ),
    *(
        Form(
            f"set.<k:{_COMPARE}>[.ftz].<u:{'|'.join(to)}>.<t:{t}>",
            "=d:u a:t b:t",
            f"ptx::set<ptx::Compare::$k, $u>({_FLUSHED})",
        )
        for t, to in (("f16", ["f16"]), ("bf16", ["bf16"]), ("f16x2", ["f16x2", "u32"]),
                      ("bf16x2", ["bf16x2", "u32"]))
    ),
    Form(f"selp.<t:{_BITS}|{_INTEGERS}|f32|f64>", "=d:t a:t b:t c:pred", "c ? a : b"),
    Form(f"slct[.ftz].<t:{_BITS}|{_INTEGERS}|f32|f64>.s32", "=d:t a:t b:t c:s32", "c >= 0 ? a : b"),
    Form(f"slct[.ftz].<t:{_BITS}|{_INTEGERS}|f32|f64>.f32", "=d:t a:t b:t c:f32", "c >= 0 ? a : b"),
]  # fmt: skip
