"""Description blocks: what they give, and a sentence with `file.cu:line` for each mistake."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.base.errors import InvalidProblem
from engine.base.launch_arguments import ScalarArg, TensorArg
from kernels.description import KernelDescriptionError, parse_variant
from kernels.source_text import description_of, without_block
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


def test_everything_a_block_says() -> None:
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
    ("problem", "sentence"),
    [
        (Problem(1, 1, 6401, 32, dtype="bfloat16"), "v30 ends at 6,400, not 6,401."),
        (
            Problem(1 << 20, 1 << 12, 1, 32, dtype="bfloat16"),
            "v30 would launch 4,294,967,296 CTAs along the grid's x axis (num_heads * batch), and "
            "CUDA allows 2,147,483,647: choose a smaller problem.",
        ),
    ],
)
def test_constraints_and_grid_limits(problem: Problem, sentence: str) -> None:
    assert parsed().unsupported(problem, {"block_n": 32}) == sentence


def test_a_launch_that_cannot_exist_is_refused() -> None:
    v30 = parsed(SOURCE.replace("threads = 128", 'threads = "16 * batch"'))
    with pytest.raises(InvalidProblem, match=r"first with a grid of .* 1040 threads.*v30_test\.cu"):
        make_plan(v30, Problem(65, 1, 1, 32, dtype="bfloat16"), {"block_n": 32})


def test_a_file_off_the_ladder_has_its_own_name() -> None:
    v = parsed(SOURCE, Path("/elsewhere/my_kernel.cu"))
    assert (v.id, v.name, v.title) == ("my_kernel", "my_kernel", "my_kernel")


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("head_dims", "head_dim", 4, "there is no key `head_dim` here: did you mean head_dims?"),
        ("head_dims = [32, 64]", "head_dims = [64, 32]", 4, "head_dims: its values ascend."),
        ("head_dims = [32, 64]\n", "", 2, "`head_dims` is missing"),
        ("head_dims = [32, 64]", 'head_dims = "32"', 4, "head_dims: it is a list of whole numbers"),
        ("head_dims = [32, 64]", "head_dims = [32, 64", 5, ""),  # TOML notices on the next line
        ("idea = ", "idea ", 3, "Expected '=' after a key in a key/value pair."),
        ("= 9.0", "= 9.05", 6, "it is a compute capability such as 8.0, not 9.05."),
        ("= 9.0", "= inf", 6, "it is a compute capability such as 8.0, not inf."),
        ("= true", "= 1", 7, "arch_specific: it is true or false, not 1."),
        ('"bfloat16"', '"fp16"', 5, "dtypes: it is a list of float16, bfloat16 and float32"),
        ("default = 64", "default = 48", 8, "default: 48 is not one of the values."),
        ("meaning", "means", 8, "there is no key `means` here: did you mean meaning?"),
        ("tunables.block_n", "tunables.seqlen", 8, "seqlen: this name is taken."),
        ("tunables.block_n", "tunables.BLOCK", 8, "BLOCK: a name is made of a-z, 0-9 and _."),
        ("let.block_m = 64", 'let.block_m = "x"', 9, "block_m: there is no x: known are"),
        ("let.block_m = 64", "let.block_n = 64", 9, "block_n: this name is taken."),
        ('"seqlen <= 100 * block_m"', '"seqlen"', 12, "condition: `seqlen` is a number"),
        ("{seqlen:,}", "{seqlem:,}", 13, "sentence: there is no seqlem: did you mean seqlen?"),
        ('fill = "zero"', 'fill = "one"', 17, "fill: it is one of poison, zero, -inf, not 'one'."),
        ('dtype = "int32"', 'dtype = "half"', 17, "dtype: it is one of float32, float64"),
        ('"partial", "counter"', '"partial"', 17, "counter: no pass takes this buffer."),
        ('entry = "first"', 'entry = "first;"', 20, "entry: it is the name of a kernel"),
        ('_m)"]', '_m)", 1]', 21, "grid: it has up to three sizes (x, y, z), not 4."),
        ('fill = "zero"', 'fill = "-inf"', 17, "fill: int32 has no infinity: take a float type"),
        ('"bfloat16"', '"float8_e4m3"', 5, "dtypes: there are no FP8 inputs yet"),
        ("threads = 128", 'threads = "block_k"', 22, "threads: there is no block_k: did you mean"),
        ("threads = 128", "threads = 12.8", 22, "threads: it is a whole number or a formula"),
        ("threads = 128", 'threads = "head_dim / 2"', 22, "threads: `/` yields fractions"),
        ('"batch", "softmax', '"batches", "softmax', 24, "there is no argument 'batches': did you"),
        ('ctype = "int32"', 'ctype = "int"', 24, "ctype: it is one of int32, uint32, int64, "),
        ('ctype = "int32", ', "", 24, "args: stride has no `ctype`: give it one, as in C++."),
        ('"batch", "softmax', '{name = "partial"}, "softmax', 24, 'write "partial" alone.'),
        ('"k", "v"', '"k"', 19, "no pass takes the argument `v`."),
        ('math_unit = "tensor"', 'math_unit = "fp8"', 34, "math_unit: it is one of fma, tensor"),
        ('kv_rows = "seqlen_kv"', 'kv_rows = "rows"', 36, "kv_rows: there is no rows"),
        (
            'kv_rows = "seqlen_kv"',
            'schedule = {shares = "rows"}',
            36,
            "shares: it is one of query t",
        ),
        (
            "v30 ends at",
            "v30 \\u001b[2Jends at",
            13,
            "a text holds the character ^[, which does not show.",
        ),
        ('idea = "One', 'idea = "\\u202eOne', 3, "a text holds the character <U+202E>"),
        ("partial = {", '"par\\u200btial" = {', 15, "a text holds the character <U+200B>"),
        ("int code;", "/* attune\n*/", 38, "a file has one description block."),
        ("/* attune", "/* other", 1, "it has no description block `/* attune … */`."),
    ],
)
def test_a_mistake_names_its_line(old: str, new: str, line: int, words: str) -> None:
    assert SOURCE.count(old) >= 1
    with pytest.raises(KernelDescriptionError) as caught:
        parsed(SOURCE.replace(old, new, 1))
    assert str(caught.value).startswith(f"v30_test.cu:{line}: ")
    assert words in str(caught.value)
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
def test_any_other_mistake_is_a_sentence_too(start: int, length: int, text: str) -> None:
    """Nothing else is raised, so that one file's mistake cannot take down the ladder."""
    edited = SOURCE[:start] + text + SOURCE[start + length :]
    try:
        parsed(edited, Path("{odd} name.cu"))
    except KernelDescriptionError as caught:
        lines = edited.count("\n") + 1
        assert 1 <= caught.line <= lines, caught  # noqa: PT017
        assert str(caught).isprintable()  # noqa: PT017


def test_what_is_compiled_lacks_the_block_and_keeps_its_lines() -> None:
    code = without_block(SOURCE)
    assert "attune" not in code
    assert code.splitlines()[37:] == ["int code;"] == SOURCE.splitlines()[37:]


def test_code_below_the_block_is_no_part_of_the_description() -> None:
    assert description_of(SOURCE) == description_of(SOURCE + "int more;\n")
    for edited in (SOURCE.replace("= 128", "= 256"), SOURCE.replace("A test", "B"), "\n" + SOURCE):
        assert description_of(SOURCE) != description_of(edited)
