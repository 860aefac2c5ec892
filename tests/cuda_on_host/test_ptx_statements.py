"""PTX of warps, memory, barriers and tensor cores, and errors about PTX."""

from __future__ import annotations

import numpy as np
import pytest
from host_kernels import KERNELS
from slow_cases import one_in
from words import raises, says

from engine.base.errors import CompileError
from engine.base.launch_arguments import TensorArg
from engine.cuda_on_host.build import build_kernels
from engine.cuda_on_host.client import Buffer, Job, KernelLaunch
from engine.cuda_on_host.ptx import translate_asm
from engine.cuda_on_host.ptx.grammar import FORMS

SOURCE = KERNELS / "ptx_statements.cu"
# The matrix kernel is included; its asm statement comes from macros.
NO_MMA = [("MMA", '""'), ("D", '"=r"(d[0])'), ("A", '"r"(0)'), ("B", '"r"(0)'), ("C", '"r"(0)')]


@pytest.mark.parametrize("check", [False, True], ids=["fast", "check"])
@pytest.mark.parametrize("schedule", ["in_order", "random", "reverse"])
def test_ptx_statements_give_the_defined_results(client, check, schedule):
    job = Job(
        library=build_kernels(SOURCE, ["statements"], NO_MMA, check),
        buffers=(
            Buffer("ok", size_bytes=512, fill="zero", returned=True),
            Buffer("data", data=np.arange(512, dtype=np.uint32), read_only=True),
            Buffer("scratch", size_bytes=1024),
        ),
        launches=(
            KernelLaunch(
                "statements",
                (1, 1, 1),
                (64, 1, 1),
                (TensorArg("ok"), TensorArg("data"), TensorArg("scratch")),
            ),
        ),
        schedule=schedule,
        seed=3,
    )
    result = client.run(job, 60.0)
    assert result.returned, result.reason
    ok = result.returned["ok"].view(np.int32)
    assert ok[127] > 40
    assert np.flatnonzero(ok[: ok[127]] != 64).tolist() == []


# ---- mma.sync ----
# (element of A, of B, of the sums, k)
SHAPES = [
    *(("f16", "f16", sums, k) for sums in ("f32", "f16") for k in (8, 16)),
    *(("bf16", "bf16", "f32", k) for k in (8, 16)),
    *(("tf32", "tf32", "f32", k) for k in (4, 8)),
    *((a, b, "s32", k) for a, b in (("s8", "s8"), ("u8", "s8")) for k in (16, 32)),
    *((a, b, "f32", 32) for a, b in (("e4m3", "e4m3"), ("e5m2", "e4m3"))),
]


def _random_bits(rng, element, shape):
    """Return (bits, values) of small numbers that every format represents exactly."""
    numbers = rng.integers(-4, 5, shape)
    if element == "u8":
        numbers = abs(numbers)
    if element in ("s8", "u8"):
        return numbers.astype(np.int8).view(np.uint8), numbers
    if element == "f16":
        return numbers.astype(np.float16).view(np.uint16), numbers
    if element in ("bf16", "tf32"):
        bits = numbers.astype(np.float32).view(np.uint32)
        return (bits if element == "tf32" else (bits >> 16).astype(np.uint16)), numbers
    halves = numbers.astype(np.float16).view(np.uint16)
    if element == "e5m2":
        return (halves >> 8).astype(np.uint8), numbers
    # e4m3: exponent bias 7 for 15, and a mantissa of 3 bits
    sign, rest = halves >> 15 << 7, halves & 0x7FFF
    return np.where(rest, sign | ((rest >> 7) - (8 << 3)), sign).astype(np.uint8), numbers


@pytest.mark.parametrize(("a_type", "b_type", "sums", "k"), one_in(5, SHAPES, offset=1, slow=4))
def test_mma(client, a_type, b_type, sums, k):
    rng = np.random.default_rng(k)
    a_bits, a = _random_bits(rng, a_type, (16, k))
    b_bits, b = _random_bits(rng, b_type, (k, 8))
    c = rng.integers(-9, 10, (16, 8))
    each = 4 // a_bits.itemsize  # elements in a register
    lane = np.arange(32)
    group, four = lane // 4, lane % 4
    # PTX manual: register 2 * block + half of A holds row group + 8 * half and `each` neighbours.
    blocks = k // (4 * each)
    a_words = np.zeros((32, 4), np.uint32)
    b_words = np.zeros((32, 2), np.uint32)
    for block in range(blocks):
        columns = block * 4 * each + four[:, None] * each + np.arange(each)
        for half in range(2):
            packed = np.ascontiguousarray(a_bits[group[:, None] + 8 * half, columns])
            a_words[:, 2 * block + half] = packed.view(np.uint32)[:, 0]
        b_words[:, block] = np.ascontiguousarray(b_bits[columns, group[:, None]]).view(np.uint32)[
            :, 0
        ]
    rows = group[:, None] + np.array([0, 0, 8, 8])
    columns = 2 * four[:, None] + np.array([0, 1, 0, 1])
    dtype = {"f32": np.float32, "f16": np.float16, "s32": np.int32}[sums]
    c_words = np.zeros((32, 4), np.uint32)
    in_lane = np.ascontiguousarray(c[rows, columns].astype(dtype)).view(np.uint32)
    c_words[:, : in_lane.shape[1]] = in_lane

    words = in_lane.shape[1]

    def vector(first, count):
        return "{" + ", ".join(f"%{first + i}" for i in range(count)) + "}"

    places = [vector(0, words), vector(words, 2 * blocks), vector(words + 2 * blocks, blocks),
              vector(words + 3 * blocks, words)]  # fmt: skip
    kind = f"mma.sync.aligned.m16n8k{k}.row.col.{sums}.{a_type}.{b_type}.{sums}"
    defines = [
        ("MMA", f'"{kind} {", ".join(places)};"'),
        ("D", ", ".join(f'"=r"(d[{i}])' for i in range(words))),
        ("A", ", ".join(f'"r"(a[{i}])' for i in range(2 * blocks))),
        ("B", ", ".join(f'"r"(b[{i}])' for i in range(blocks))),
        ("C", ", ".join(f'"r"(c[{i}])' for i in range(words))),
    ]
    inputs = {"a": a_words, "b": b_words, "c": c_words}
    tensors = tuple(TensorArg(name) for name in "abcd")
    job = Job(
        library=build_kernels(SOURCE, ["fragments"], defines),
        buffers=(
            *(Buffer(name, data=data, read_only=True) for name, data in inputs.items()),
            Buffer("d", size_bytes=512, returned=True),
        ),
        launches=(KernelLaunch("fragments", (1, 1, 1), (32, 1, 1), tensors),),
    )
    result = client.run(job, 60.0)
    assert result.returned, result.reason
    got = np.ascontiguousarray(result.returned["d"].view(np.uint32).reshape(32, 4)[:, :words])
    assert np.array_equal(got.view(dtype), (a @ b + c)[rows, columns].astype(dtype))


# ---- errors ----
def statement(text, operands='"=r"(d) : "r"(a)'):
    return f'# 7 "k.cu"\nvoid f(int a, int &d) {{\n  asm volatile("{text}" : {operands});\n}}\n'


@pytest.mark.parametrize(
    ("text", "names", "facts"),
    [
        ("ex3.approx.f32 %0, %1;", ["ptx_not_executed"],
         ["`ex3.approx.f32 %0, %1`", "__CUDA_ON_HOST__"]),
        ("tcgen05.alloc.sync.b32 [%0], 32;", ["ptx_not_executed"], ["tcgen05"]),
        ("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 %0, %1;",
         ["ptx_form_not_executed"], ["mma.sync.aligned.m16n8k16"]),
        ("add.u32 %0, %1;", ["ptx_operands_differ"], ["=d:t a:t b:t"]),
        ("add.u32 %0, %1, x;", ["ptx_register_undeclared"], ["x"]),
        ("add.u64 %0, %1, %1;", ["ptx_register_width"], ["%0", "32", "64"]),
        ("{ .reg .f32 x; add.u32 %0, %1, x; }", ["ptx_register_float"], ["x"]),
        ("mov.u32 %1, %0;", ["ptx_input_written"], ["%1"]),
        ("{ mov.u32 %0, %1;", ["ptx_brace_open"], []),
        ("mov.u32 %0, %1; }", ["ptx_brace_closed"], []),
        ("add.u32 %0, %1, ?;", ["ptx_register_undeclared"], ["?"]),
        ("addc.u32 %0, %1, %1;", ["ptx_needs_carry", "ptx_carry_in_one_statement"], []),
        ("mov.u32 %0, %%pm0;", ["ptx_no_such_register"], ["%pm0"]),
        ("ld.global.u32 %0, [%1];", ["ptx_address_width"], ["%1", "32", "64"]),
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0}, [%1];", ["ptx_operands_differ"], []),
        ("cp.async.wait_group %1;", ["ptx_constant_operand"], ["%1"]),
        (".reg .v2 x;", ["ptx_register_types"], []),
    ],
)  # fmt: skip
def test_unsupported_instructions_are_errors_with_line(text, names, facts):
    with pytest.raises(CompileError) as error:
        translate_asm(statement(text), ["k.cu"])
    assert str(error.value).startswith("k.cu:8: ")
    for name in names:
        assert says(str(error.value), name, *facts)


@pytest.mark.parametrize(
    ("operands", "name", "facts"),
    [
        ('"=r"(d) : "x"(a)', "asm_constraint_unknown", ['"x"', "%1"]),
        ('"r"(d) : "r"(a)', "asm_constraint_side", ['"r"']),
        ('"=r"(d) : "C"(a)', "asm_constraint_unknown", ['"C"']),
        ('"=r" d : "r"(a)', "asm_operand_form", []),
    ],
)
def test_invalid_asm_operands(operands, name, facts):
    with raises(CompileError, name, "k.cu:8: ", *facts):
        translate_asm(statement("mov.u32 %0, %1;", operands), ["k.cu"])


def test_an_operand_of_the_wrong_type_is_an_error_at_its_line(tmp_path):
    source = tmp_path / "k.cu"
    source.write_text(
        'extern "C" __global__ void k(float *out) {\n'
        "  float x;\n"
        '  asm("mov.b32 %0, 0;" : "=r"(x));\n'
        "  out[0] = x;\n}\n"
    )
    with pytest.raises(CompileError, match=r"^k\.cu:3: .*operand %0.*constraint"):
        build_kernels(source, ["k"])


def test_the_text_may_come_from_macros_and_span_lines(tmp_path):
    source = tmp_path / "k.cu"
    source.write_text(
        "#define OP(x) #x\n"
        '#define ADD(d, a) asm volatile(OP(add) ".u32 %0, %1, " \\\n'
        '    "1;" : "=r"(d) : "r"(a))\n'
        'extern "C" __global__ void k(unsigned *out) {\n'
        "  unsigned x = 4;\n"
        "  if (x) ADD(x, x); else x = 0;\n"
        '  asm(R"(mul.lo.u32 %0,\n'
        '      %1, 2;)" : "=r"(x) : "r"(x));\n'
        '  static_assert(__LINE__ == 9, "");\n'
        "  missing();\n}\n"
    )
    with pytest.raises(CompileError, match=r"^k\.cu:10: .*missing"):
        build_kernels(source, ["k"])


def test_the_target_gpu_is_known_to_the_source(tmp_path):
    source = tmp_path / "k.cu"
    source.write_text(
        "#if !defined(__CUDACC__)\n#error no CUDA\n#endif\n"
        "#if __CUDA_ARCH__ != ARCH\n#error another arch\n#endif\n"
        "#if defined(__CUDA_ARCH_FEAT_SM90_ALL) != SPECIFIC\n#error another target\n#endif\n"
        'extern "C" __global__ void k(unsigned *out) { out[0] = 1; }\n'
    )
    paths = {
        build_kernels(source, ["k"], [("ARCH", number), ("SPECIFIC", specific)], arch=arch).path
        for arch, number, specific in (
            ("sm_75", "750", "0"),
            ("sm_90", "900", "0"),
            ("sm_90a", "900", "1"),
        )
    }
    assert len(paths) == 3
    asks_less = tmp_path / "less.cu"
    asks_less.write_text(
        "#define IS_AMPERE (__CUDA_ARCH__ == 800)\n"  # not used
        "#define IS_OLD (__CUDA_ARCH__ < 800)\n"
        "#if IS_OLD\n#error another arch\n#endif\n"
        'extern "C" __global__ void k(unsigned *out) { out[0] = 1; }\n'
    )
    newer = [build_kernels(asks_less, ["k"], arch=arch).path for arch in ("sm_80", "sm_120")]
    assert newer[0] == newer[1]
    asks_less.write_text(asks_less.read_text() + "constexpr int WARPS = IS_AMPERE ? 1 : 2;\n")
    newer += [build_kernels(asks_less, ["k"], arch=arch).path for arch in ("sm_80", "sm_120")]
    assert len(set(newer)) == 3
    with pytest.raises(CompileError, match="another arch"):
        build_kernels(asks_less, ["k"], arch="sm_75")
    with pytest.raises(CompileError, match="another arch"):
        build_kernels(source, ["k"], [("ARCH", "800"), ("SPECIFIC", "0")], arch="sm_90")
    with raises(CompileError, "not_an_arch", "sm_9x"):
        build_kernels(source, ["k"], [("ARCH", "800")], arch="sm_9x")


@pytest.mark.parametrize(
    ("name", "ordered"),
    [
        ("ldmatrix.sync.aligned.x4.m8n8.shared.b16", "ldmatrix.sync.aligned.m8n8.x4.shared.b16"),
        ("ldmatrix.trans.b16.shared.x2.m8n8.aligned.sync",
         "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16"),
        ("atom.add.acq_rel.gpu.s32", "atom.acq_rel.gpu.add.s32"),
        ("ld.u32.v2.nc.global", "ld.global.nc.v2.u32"),
        ("cvt.f16x2.f32.relu.rn", "cvt.rn.relu.f16x2.f32"),
        ("cp.async.shared.global.cg", "cp.async.cg.shared.global"),
        ("mma.row.sync.col.f32.f16.aligned.f16.f32.m16n8k16",
         "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"),
        ("mbarrier.try_wait.parity.b64.shared::cta", "mbarrier.try_wait.parity.shared::cta.b64"),
        # Operands that are distinguished by their order keep it.
        ("cp.async.cg.global.shared", None),
        ("mma.sync.aligned.m16n8k16.col.row.f32.f16.f16.f32", None),
        ("cvt.rn.relu.f32.f16x2", None),
        ("fma.rn.f32.f32", None),
    ],
)  # fmt: skip
def test_modifiers_may_have_any_order_that_ptxas_accepts(name, ordered):
    found = {form.in_order(name) for form in FORMS[name.partition(".")[0]]} - {None}
    assert found == ({ordered} if ordered else set())
    assert not ordered or any(form.match(ordered) for form in FORMS[name.partition(".")[0]])
