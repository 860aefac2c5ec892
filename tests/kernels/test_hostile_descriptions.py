"""Invalid descriptions: an error for each, in linear time, without effect on other kernels."""

from __future__ import annotations

import contextlib
import random
import re
import time
from pathlib import Path

import pytest
from slow_cases import slow_ones
from words import raises, says

from engine.attention.config import VARIABLE
from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.base.errors import InvalidKernel, InvalidProblem, Status
from engine.cli import main
from engine.cuda_source.sources import without_descriptions
from engine.own_kernels.draft import draft_block
from engine.pipeline.evaluate import evaluate
from engine.pipeline.request import EvaluationRequest
from kernels.description import KernelDescriptionError, MissingDescription, parse_variant
from kernels.source_text import description_of, has_block
from kernels.variant import KERNELS_DIR, Variant

SOURCE = (KERNELS_DIR / "v01_fa1_baseline.cu").read_text(encoding="utf-8")
OWN = Path(__file__).parents[1] / "own_kernels" / "kernels"
PROBLEM = Problem(1, 2, 64, 64)
PROBLEMS = [PROBLEM, Problem(3, 4, 17, 128, causal=True), Problem(65_536, 4_096, 1, 32)]
BLOCK = """\
/* attune
head_dims = [64]
scratch.partial = {{shape = ["{shape}", 4]}}
{top}

[[passes]]
entry = "k"
grid = ["{grid}", 1, 1]
threads = "{threads}"
args = ["q", "k", "v", "out", "partial", {{name = "x", ctype = "float32", value = "{value}"}}{more}]

[work]
query_rows = "{rows}"
*/
__global__ void k() {{}}
"""
USUAL = {
    "shape": "seqlen", "top": "", "grid": "batch", "threads": "128", "value": "1.5",
    "more": "", "rows": "64",
}  # fmt: skip


def described(**fields: str) -> str:
    return BLOCK.format(**USUAL | fields)


def own(text: str) -> Variant:
    return parse_variant(text, Path("mine.cu"), is_own=True)


WRONG = {
    "division": ({"value": "1/(1e-300*1e-300)"}, "formula_without_value", ["argument x"]),
    "infinite": ({"value": "1e300*1e300"}, "formula_beyond_limits", ["argument x", "inf"]),
    "float32": ({"value": "1e300"}, "formula_beyond_limits", ["argument x", "1e+300"]),
    "overflow": (
        {"value": "1.0*" + "*".join(["1099511627776"] * 27)},
        "formula_beyond_limits",
        ["argument x", "inf"],
    ),
    "int32": (
        {"more": ', {name = "n", ctype = "int32", value = "seqlen * 2147483647"}'},
        "formula_beyond_limits",
        ["argument n", "137,438,953,408"],
    ),
    "shape": ({"shape": "seqlen - 100"}, "formula_beyond_limits", ["scratch.partial", "-36"]),
    "large shape": (
        {"shape": "*".join(["1099511627776"] * 4)},
        "formula_beyond_limits",
        ["scratch.partial"],
    ),
    "rows": ({"rows": "32 - seqlen"}, "formula_beyond_limits", ["work.query_rows", "-32"]),
    "no rows": ({"rows": "seqlen // 65"}, "formula_beyond_limits", ["work.query_rows", "0"]),
    "grid": ({"grid": "batch - 1"}, "formula_beyond_limits", ["grid of the pass k", "0"]),
    "threads": (
        {"threads": "4096 * seqlen"},
        "formula_beyond_limits",
        ["threads of the pass k", "262,144"],
    ),
    "page": (
        {"top": 'page_rows = "seqlen // 65"', "more": ', "block_table"'},
        "formula_beyond_limits",
        ["page_rows", "0"],
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_formula_without_a_possible_value_gives_a_one_sentence_error(kind: str) -> None:
    fields, name, facts = WRONG[kind]
    variant = own(described(**fields))
    why = variant.unsupported(PROBLEM, {})
    assert why is not None
    assert why.startswith("mine ")
    assert says(why, name, *facts)
    assert why.endswith(".")
    assert why.isprintable()
    with raises(InvalidProblem, "problem_not_taken", why):
        make_plan(variant, PROBLEM, {})


def test_usual_formulas_have_possible_values() -> None:
    assert make_plan(own(described()), PROBLEM, {}).passes[0].grid == (1, 1, 1)


@pytest.mark.parametrize("text", ["A\rB", "A\nB", "A\x1bB", "A\u202eB", "A\u2028B"])
def test_a_macro_is_one_line_of_visible_text(text: str) -> None:
    escaped = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)
    name = "macro_value" if text == "A\nB" else "description_character"
    with raises(KernelDescriptionError, name, "mine.cu:4: "):
        own(described(top=f'defines = {{D = "{escaped}"}}'))


def test_lines_may_end_as_on_windows() -> None:
    text = described().replace("\n", "\r\n")
    assert own(text).passes[0].entry == "k"
    with raises(KernelDescriptionError, "formula_name", "mine.cu:8: grid"):
        own(described(grid="bath").replace("\n", "\r\n"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "/* attune\n" * 99_000,
        "/* attune\n*/\n" * 70_000,
        "/*" + " " * 990_000,
        "/* attune" + " " * 990_000 + "\n",
        ("/* attune" + "\t" * 90 + "\n") * 9_900,
    ],
)
def test_a_megabyte_of_blocks_is_read_in_linear_time(text: str) -> None:
    begin = time.process_time()
    has_block(text), description_of(text), without_descriptions(text)
    with pytest.raises((KernelDescriptionError, MissingDescription)):
        own(text)
    with raises(InvalidKernel, "no_kernel_in_file"):
        draft_block(text, Path("mine.cu"))
    assert time.process_time() - begin < 2


KERNEL = "__global__ void k(float* q, float* k, float* v, float* o, int n) { o[0] = q[0]; }\n"
# A megabyte of constructs that a draft looks for, and of unterminated ones.
UNGUESSED = {
    "typedef": KERNEL + "typedef " * 110_000,
    "typedef of nothing": KERNEL + "typedef" + " " * 900_000,
    "using": KERNEL + "using A =" + " " * 900_000,
    "parameters": "__global__ void k(" + "float* a, " * 50_000 + "int b) { a[0] = 1; }",
    "launches": KERNEL + "k<<<1, 2>>>(a, b, c, d, 1);\n" * 30_000,
    "open launches": KERNEL + "k<<<" * 200_000,
    "templates": "template <" * 90_000 + KERNEL,
    "namespaces": "namespace a {" * 70_000 + KERNEL,
    "extern": KERNEL + "extern a(" * 100_000,
    "kernels": KERNEL * 10_000,
}


@pytest.mark.parametrize("kind", slow_ones(9, list(UNGUESSED)))
def test_a_megabyte_without_a_block_is_drafted_in_linear_time(kind: str) -> None:
    begin = time.process_time()
    with contextlib.suppress(InvalidKernel):
        assert "args = [" in draft_block(UNGUESSED[kind], Path("mine.cu"))
    assert time.process_time() - begin < 8


# -- damaged descriptions


def damaged(text: str, rng: random.Random) -> str:
    """Change, remove or repeat some characters, words or lines."""
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(text))
        what = rng.randrange(6)
        if what == 0:
            text = text[:at] + text[at + rng.randint(1, 8) :]
        elif what == 1:
            text = text[:at] + rng.choice("\"'{}[]()=,.*/%-0\x00\r\n\u202e é") + text[at:]
        elif what == 2:
            lines = text.splitlines(keepends=True)
            lines.insert(rng.randrange(len(lines)), rng.choice(lines))
            text = "".join(lines)
        elif what == 3:
            numbers = list(re.finditer(r"\d+", text))
            if numbers:
                n = rng.choice(numbers)
                other = rng.choice(("0", "-1", "9" * 20, "2147483648", "1e400", "0x10", "nan"))
                text = text[: n.start()] + other + text[n.end() :]
        elif what == 4:
            words = list(re.finditer(r"[a-z_]{4,}", text))
            a, b = rng.choice(words), rng.choice(words)
            text = text[: a.start()] + b[0] + text[a.end() :]
        else:
            text = text[:at] + rng.choice(("(" * 300, "[" * 300, "max(1,", "9" * 5_000)) + text[at:]
    return text


def sources() -> list[str]:
    texts = [described()]
    texts += [p.read_text(encoding="utf-8") for p in sorted(KERNELS_DIR.glob("v*.cu"))]
    texts += [f"/* attune\n{p.read_text()}*/\n" for p in sorted(OWN.glob("*.attune.toml"))]
    return texts


def outcome(text: str) -> str:
    """Return why a source, or its launch of a problem, is refused; "" if nothing is."""
    try:
        variant = own(text)
        for problem in PROBLEMS:
            config = variant.default_config()
            if variant.unsupported(problem, config) is None:
                make_plan(variant, problem, config)
    except (KernelDescriptionError, InvalidProblem) as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_five_hundred_damaged_descriptions_give_one_sentence_errors() -> None:
    texts, read = sources(), 0
    for seed in range(500):
        rng = random.Random(seed)
        text = rng.choice(texts)
        head, close, rest = text.partition("*/")
        why = outcome(damaged(head, rng) + close + rest[:200])
        assert why.isprintable(), seed
        assert len(why) < 2_000, seed
        read += not why
    assert read > 40


# -- effect on other kernels


@pytest.fixture
def broken_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a folder with one valid own kernel and many invalid ones."""
    (tmp_path / "good.cu").write_text(described())
    for kind, (fields, *_) in WRONG.items():
        (tmp_path / f"{kind.replace(' ', '_')}.cu").write_text(described(**fields))
    (tmp_path / "damaged.cu").write_text(described(grid="batch *"))
    (tmp_path / "escape.cu").write_text(described(top='idea = "\\u001b[2J"'))
    (tmp_path / "not_text.cu").write_bytes(b"/* attune\n\xff*/")
    monkeypatch.setenv(VARIABLE, str(tmp_path))


@pytest.mark.usefixtures("broken_kernels")
def test_variants_are_listed_despite_bad_neighbours(capsys: pytest.CaptureFixture[str]) -> None:
    for more in ([], ["--json"]):
        assert main(["variants", *more]) == 1  # as some could not be read
        printed = capsys.readouterr()
        assert "good" in printed.out
        assert "v01" in printed.out
        assert "damaged.cu:8" in printed.out + printed.err


@pytest.mark.usefixtures("broken_kernels")
@pytest.mark.parametrize("kind", WRONG)
def test_evaluating_a_bad_kernel_gives_a_one_sentence_message(kind: str) -> None:
    name = kind.replace(" ", "_")
    found = evaluate(EvaluationRequest(name, PROBLEM, {}, gpu="L4", backend="cpu")).evaluation
    assert found.status is Status.SKIPPED
    assert says(found.reason, "cannot_launched_problem", name)
