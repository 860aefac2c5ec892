"""Description blocks: the variant described, and an error with `file.cu:line` for each mistake."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from words import raises, says

from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.base.errors import InvalidProblem
from engine.base.launch_arguments import ScalarArg, TensorArg
from engine.cuda_source.sources import without_descriptions
from kernels.description import KernelDescriptionError, parse_variant
from kernels.source_text import description_blocks, description_of
from kernels.variant import Variant

PATH = Path("v30_test.cu")
SOURCE = """\
// v30 A test: what a block can say.
/* attune
idea = "One idea."
head_dims = [32, 64]
dtypes = ["bfloat16"]
min_compute_capability = 9.0
arch_specific = true
tunables.block_n = {values = [32, 64], default = 64, meaning = "K/V rows per tile"}
let.block_m = 64

[[constraints]]
condition = "seqlen <= 100 * block_m"
sentence = "v30 ends at {100 * block_m:,}, not {seqlen:,}."

[scratch]
partial = {shape = ["batch", "seqlen"]}
counter = {dtype = "int32", shape = [1], fill = "zero"}

[[passes]]
entry = "first"
grid = ["num_heads * batch", 1, "ceil_div(seqlen, block_m)"]
threads = 128
smem_bytes = "block_n * head_dim * element_bytes"
args = ["q", "k", "v", "out", "partial", "counter", "batch", "softmax_scale",
        {name = "stride", ctype = "int32", value = "seqlen * head_dim"}]

[[passes]]
entry = "second"
grid = ["batch", 1, 1]
threads = 32
args = ["out"]

[work]
math_unit = "tensor"
query_rows = "block_m"
kv_rows = "seqlen_kv"
*/
int code;
"""


def parsed(text: str = SOURCE, path: Path = PATH) -> Variant:
    return parse_variant(text, path)


def test_a_block_is_read_completely() -> None:
    v30, problem, config = parsed(), Problem(2, 3, 130, 32, dtype="bfloat16"), {"block_n": 32}
    assert (v30.id, v30.name, v30.title, v30.idea) == ("v30", "v30_test", "A test", "One idea.")
    assert (v30.head_dims, v30.dtypes) == ((32, 64), ("bfloat16",))
    assert (v30.min_compute_capability, v30.arch_specific) == ((9, 0), True)
    assert v30.tunables[0].macro == "BLOCK_N"
    assert v30.default_config() == {"block_n": 64}
    plan = make_plan(v30, problem, config)
    assert plan.source == PATH
    assert [(p.entry, p.grid, p.threads, p.dynamic_smem_bytes) for p in plan.passes] == [
        ("first", (6, 1, 3), 128, 32 * 32 * 2),
        ("second", (2, 1, 1), 32, 0),
    ]
    assert plan.passes[0].args == (
        *map(TensorArg, ("q", "k", "v", "out", "partial", "counter")),
        ScalarArg("batch", "int32", 2),
        ScalarArg("softmax_scale", "float32", 1 / math.sqrt(32)),
        ScalarArg("stride", "int32", 130 * 32),
    )
    assert [(s.name, s.dtype, s.shape, s.fill) for s in plan.scratch] == [
        ("partial", "float32", (2, 130), "poison"),
        ("counter", "int32", (1,), "zero"),
    ]
    assert (plan.query_rows, plan.kv_rows) == (64, 130)
    assert v30.work.math_threads(problem, config) == 128
    assert v30.work.conflict_ways is None


@pytest.mark.parametrize(
    ("problem", "facts"),
    [
        # A constraint's sentence is that of the description.
        (Problem(1, 1, 6401, 32, dtype="bfloat16"), ["v30 ends at 6,400, not 6,401."]),
        (
            Problem(1 << 20, 1 << 12, 1, 32, dtype="bfloat16"),
            ["v30 ", "4,294,967,296", "(num_heads * batch)", "2,147,483,647"],
        ),
    ],
)
def test_constraints_and_grid_limits(problem: Problem, facts: list[str]) -> None:
    why = parsed().unsupported(problem, {"block_n": 32})
    assert why is not None
    assert [fact for fact in facts if fact not in why] == []


def test_a_launch_that_cannot_exist_is_refused() -> None:
    v30 = parsed(SOURCE.replace("threads = 128", 'threads = "16 * batch"'))
    with raises(InvalidProblem, "launch_is_impossible", "first", "1040 threads", "v30_test.cu"):
        make_plan(v30, Problem(65, 1, 1, 32, dtype="bfloat16"), {"block_n": 32})


def test_a_file_off_the_ladder_has_its_own_name() -> None:
    v = parsed(SOURCE, Path("/elsewhere/my_kernel.cu"))
    assert (v.id, v.name, v.title) == ("my_kernel", "my_kernel", "my_kernel")


@pytest.mark.parametrize(
    ("old", "new", "line", "name", "facts"),
    [
        ("head_dims", "head_dim", 4, "description_key_unknown", ["`head_dim`", "head_dims?"]),
        (
            "head_dims = [32, 64]",
            "head_dims = [64, 32]",
            4,
            "description_values_ascend",
            ["head_dims"],
        ),
        ("head_dims = [32, 64]\n", "", 2, "description_key_missing", ["`head_dims`"]),
        (
            "head_dims = [32, 64]",
            'head_dims = "32"',
            4,
            "description_list_of_numbers",
            ["head_dims"],
        ),
        ("head_dims = [32, 64]", "head_dims = [32, 64", 5, "", []),  # TOML notices on the next line
        ("idea = ", "idea ", 3, "", []),
        ("= 9.0", "= 9.05", 6, "description_kind", ["9.05"]),
        ("= 9.0", "= inf", 6, "description_kind", ["inf"]),
        ("= true", "= 1", 7, "description_kind", ["arch_specific", "1"]),
        ('"bfloat16"', '"fp16"', 5, "description_kind", ["dtypes", "['fp16']"]),
        ("default = 64", "default = 48", 8, "description_default", ["48"]),
        ("meaning", "means", 8, "description_key_unknown", ["`means`", "meaning?"]),
        ("tunables.block_n", "tunables.seqlen", 8, "description_name_taken", ["seqlen"]),
        ("tunables.block_n", "tunables.BLOCK", 8, "description_name_form", ["BLOCK"]),
        ("let.block_m = 64", 'let.block_m = "x"', 9, "formula_name", ["block_m", "x"]),
        ("let.block_m = 64", "let.block_n = 64", 9, "description_name_taken", ["block_n"]),
        (
            '"seqlen <= 100 * block_m"',
            '"seqlen"',
            12,
            "formula_is_number",
            ["condition", "`seqlen`"],
        ),
        ("{seqlen:,}", "{seqlem:,}", 13, "formula_name", ["sentence", "seqlem", "seqlen?"]),
        (
            'fill = "zero"',
            'fill = "one"',
            17,
            "description_choice",
            ["poison, zero, -inf", "'one'"],
        ),
        (
            'dtype = "int32"',
            'dtype = "half"',
            17,
            "description_choice",
            ["float32, float64", "'half'"],
        ),
        ('"partial", "counter"', '"partial"', 17, "buffer_not_taken", ["counter"]),
        ('entry = "first"', 'entry = "first;"', 20, "description_kind", ["entry", "'first;'"]),
        ('_m)"]', '_m)", 1]', 21, "description_sizes_xyz", ["grid", "4"]),
        ('fill = "zero"', 'fill = "-inf"', 17, "fill_without_infinity", ["int32"]),
        ('"bfloat16"', '"float8_e4m3"', 5, "description_fp8", ["dtypes"]),
        ("threads = 128", 'threads = "block_k"', 22, "formula_name", ["threads", "block_k"]),
        ("threads = 128", "threads = 12.8", 22, "description_kind", ["threads", "12.8"]),
        ("threads = 128", 'threads = "head_dim / 2"', 22, "formula_true_division", ["threads"]),
        (
            '"batch", "softmax',
            '"batches", "softmax',
            24,
            "argument_unknown",
            ["'batches'", "batch?"],
        ),
        ('ctype = "int32"', 'ctype = "int"', 24, "description_choice", ["int32, uint32", "'int'"]),
        ('ctype = "int32", ', "", 24, "argument_without_ctype", ["stride"]),
        (
            '"batch", "softmax',
            '{name = "partial"}, "softmax',
            24,
            "argument_without_ctype",
            ['"partial"'],
        ),
        ('"k", "v"', '"k"', 19, "argument_not_taken", ["`v`"]),
        (
            'math_unit = "tensor"',
            'math_unit = "fp8"',
            34,
            "description_choice",
            ["math_unit", "fma, tensor"],
        ),
        ('kv_rows = "seqlen_kv"', 'kv_rows = "rows"', 36, "formula_name", ["kv_rows", "rows"]),
        (
            'kv_rows = "seqlen_kv"',
            'schedule = {shares = "rows"}',
            36,
            "description_choice",
            ["shares", "query tiles"],
        ),
        (
            "v30 ends at",
            "v30 \\u001b[2Jends at",
            13,
            "description_character",
            ["^["],
        ),
        ('idea = "One', 'idea = "\\u202eOne', 3, "description_character", ["<U+202E>"]),
        ("partial = {", '"par\\u200btial" = {', 15, "description_character", ["<U+200B>"]),
        ("int code;", "/* attune\n*/", 38, "description_block_one", []),
        ("/* attune", "/* other", 1, "description_block_missing", []),
    ],
)
def test_an_error_in_a_description_names_its_line(
    old: str, new: str, line: int, name: str, facts: list[str]
) -> None:
    assert SOURCE.count(old) >= 1
    with pytest.raises(KernelDescriptionError) as caught:
        parsed(SOURCE.replace(old, new, 1))
    assert str(caught.value).startswith(f"v30_test.cu:{line}: ")
    assert not name or says(str(caught.value), name, *facts)  # without a name: TOML's own error
    assert str(caught.value).endswith((".", "?"))
    assert "\n" not in str(caught.value)
    assert "?." not in str(caught.value)


@pytest.mark.slow
@given(
    st.integers(0, len(SOURCE)),
    st.integers(0, 40),
    st.one_of(
        st.text(max_size=20),
        st.sampled_from(["[", "]", '"""', "{", "}", "=", ",", "*/", "inf", "[[passes]]"]),
        st.sampled_from(["0x" + "f" * 5000, "9" * 5000, "2020-01-01", "\\u001b", "\n", "'", "#"]),
    ),
)
def test_any_edit_of_a_block_gives_a_description_error_at_most(
    start: int, length: int, text: str
) -> None:
    """No other exception is raised, so one file's mistake does not affect the ladder."""
    edited = SOURCE[:start] + text + SOURCE[start + length :]
    try:
        parsed(edited, Path("{odd} name.cu"))
    except KernelDescriptionError as caught:
        lines = edited.count("\n") + 1
        assert 1 <= caught.line <= lines, caught  # noqa: PT017
        assert str(caught).isprintable()  # noqa: PT017


def test_the_compiled_source_has_no_block_and_the_same_lines() -> None:
    code = without_descriptions(SOURCE)
    assert "attune" not in code
    assert code.splitlines()[37:] == ["int code;"] == SOURCE.splitlines()[37:]


@pytest.mark.parametrize(
    "text",
    [
        SOURCE,
        SOURCE.replace("\n", "\r\n"),
        SOURCE + SOURCE,
        f"{SOURCE}/* attune\nnot closed",
        "/* attune\n/* attune\n*/ int a; */\n",
        "int a; /* attune\n*/\n/* attune x\n*/\n /* attune\n*/",
        "/*\tattune \n*/\n/* attune*/\n/* attune\n*/",
    ],
)
def test_the_compiled_source_lacks_what_the_reader_reads(text: str) -> None:
    read = text
    for block in description_blocks(text):
        read = read.replace(block.text, "\n" * block.text.count("\n"), 1)
    assert without_descriptions(text) == read


def test_code_below_the_block_is_no_part_of_the_description() -> None:
    assert description_of(SOURCE) == description_of(SOURCE + "int more;\n")
    for edited in (SOURCE.replace("= 128", "= 256"), SOURCE.replace("A test", "B"), "\n" + SOURCE):
        assert description_of(SOURCE) != description_of(edited)
