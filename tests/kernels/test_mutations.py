"""Bugs of tests/planted_bugs are found by the check: a sample by default, more when slow."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from bench import bench_unseen
from fitting import fitting_config
from planted_bugs import Mutation, cases, causes, look
from planted_bugs.anchors import replaced, spans
from planted_bugs.clusters import CLUSTERS, NOT_NAMED
from planted_bugs.compiler import COMPILER
from planted_bugs.fifth import FIFTH
from planted_bugs.fresh import FRESH
from planted_bugs.held_out import HELD_OUT
from planted_bugs.hopper import ordering_statements
from planted_bugs.mutation import HOPPER
from planted_bugs.planting import OWN_KERNELS, mutated, plain, source_of
from planted_bugs.sixth import SIXTH
from planted_bugs.thin import THIN
from planted_bugs.unseen import LEGAL, UNSEEN, Unseen
from slow_cases import one_in, slow_ones
from untimed import untimed
from words import is_name

from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.cuda_on_host.error_kinds import ErrorKind
from engine.model.kernel import compile_plan
from engine.pipeline.evaluate import Evaluator
from kernels.ladder import LADDER, by_id
from kernels.variant import KERNELS_DIR, Variant

# One of how many bugs of the table is run by `pytest -m slow`, and one of how many by default.
_SLOW, _QUICK = 240, 720


@pytest.fixture(scope="module")
def evaluator() -> Iterator[Evaluator]:
    with untimed() as evaluator:
        yield evaluator


def _id(value: object) -> str:
    return value.name.replace(" ", "_") if isinstance(value, Mutation) else str(value)


@pytest.mark.parametrize(
    ("variant", "mutation"), one_in(_QUICK // _SLOW, cases()[5::_SLOW], offset=2), ids=_id
)
def test_a_planted_bug_is_found(
    evaluator: Evaluator, variant: str, mutation: Mutation, tmp_path: Path
) -> None:
    seen = look(evaluator, mutation, variant, "check", tmp_path)
    assert seen.found, f"{variant} {mutation.name}"
    assert seen.text


@pytest.mark.exhaustive
@pytest.mark.parametrize("mutation", [*HELD_OUT, *THIN, *FIFTH], ids=_id)
def test_a_bug_of_the_unseen_set_is_found(
    evaluator: Evaluator, mutation: Unseen, tmp_path: Path
) -> None:
    assert look(evaluator, mutation, mutation.variants[0], "check", tmp_path).found


_OF_FIFTH = (
    ("v01", "the sink is left out"),
    ("v02", "heads of all sequences in one line"),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutation", [m for m in FIFTH if (m.variants[0], m.name) in _OF_FIFTH], ids=_id
)
def test_a_bug_of_the_fifth_set_is_found(
    evaluator: Evaluator, mutation: Unseen, tmp_path: Path
) -> None:
    assert look(evaluator, mutation, mutation.variants[0], "check", tmp_path).found


_OF_PAGES = {  # True: slow; the others are exhaustive
    ("v21", "the first rows of every page"): False,
    ("v21", "pages half as long"): False,
    ("v16", "columns half as far apart"): False,
    ("v16", "boxes of K and V half as far apart"): True,
    ("v16", "every box of Q from column 0"): True,
}


@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(m, marks=pytest.mark.slow if is_slow else pytest.mark.exhaustive)
        for m in THIN
        if (is_slow := _OF_PAGES.get((m.variants[0], m.name))) is not None
    ],
    ids=_id,
)
def test_a_wrong_page_descriptor_or_box_is_named(
    evaluator: Evaluator, mutation: Unseen, tmp_path: Path
) -> None:
    assert look(evaluator, mutation, mutation.variants[0], "check", tmp_path).named


_OF_CLUSTERS = ("a CTA leaves without the other",)


@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(
            m, marks=pytest.mark.slow if m.name in _OF_CLUSTERS else pytest.mark.exhaustive
        )
        for m in CLUSTERS
    ],
    ids=_id,
)
def test_a_bug_between_the_ctas_of_a_cluster_is_found_and_named(
    evaluator: Evaluator, mutation: Mutation, tmp_path: Path
) -> None:
    seen = look(evaluator, mutation, "v19", "check", tmp_path)
    assert seen.found
    assert seen.named or mutation.name == NOT_NAMED, seen.text


@pytest.mark.parametrize("mutation", slow_ones(99, LEGAL), ids=_id)
def test_a_legal_change_gives_no_finding(
    evaluator: Evaluator, mutation: Unseen, tmp_path: Path
) -> None:
    seen = look(evaluator, mutation, mutation.variants[0], "check", tmp_path)
    assert not seen.found, seen.text


def test_every_mutation_fits_its_kernel() -> None:
    """A change of a kernel may need a change of its mutations."""
    written_later = (*HELD_OUT, *THIN, *FRESH, *FIFTH, *SIXTH, *COMPILER, *CLUSTERS)
    others = [(m.variants[0], m) for m in (*UNSEEN, *written_later, *LEGAL)]
    for variant, mutation in (*cases(), *others):
        source = source_of(variant)
        folder = source.parent if (source.parent / mutation.header).exists() else KERNELS_DIR
        original = (folder / (mutation.header or source.name)).read_text("utf-8")
        text, lines = mutated(mutation, original)
        assert lines
        assert text != original, mutation.name


@pytest.mark.parametrize("variant", HOPPER)
def test_each_ordering_statement_is_removed_by_one_bug(variant: str) -> None:
    text = source_of(variant).read_text("utf-8")
    bugs = [m for v, m in cases() if v == variant and m.name.startswith("without ")]
    without = [text[: s.start()] + ";" + text[s.end() :] for s in ordering_statements(text)]
    assert len(without) >= 12
    left_out = [mutated(bug, text)[0] for bug in bugs]
    assert [left_out.count(text) for text in without] == [1] * len(without)


@pytest.mark.parametrize("variant", slow_ones(4, list(LADDER)), ids=lambda v: v.id)
def test_kernels_without_features_compile(variant: Variant, tmp_path: Path) -> None:
    """Otherwise the compiler would find every bug."""
    for header in KERNELS_DIR.glob("*.cuh"):
        shutil.copy(header, tmp_path)
    problem = Problem(1, 1, 64, 64)
    plan = make_plan(variant, problem, fitting_config(variant, problem))
    source = tmp_path / variant.source.name
    source.write_text(plain(variant.source.read_text("utf-8")), "utf-8")
    compile_plan(replace(plan, source=source), "sm_90")


def test_a_bug_is_planted_whatever_the_white_space() -> None:
    for text in ("f(a, b);\n  g(a);", "f( a,\n     b );\ng(a);"):
        planted, lines = replaced(text, "f(a, b);", "f(b, a);")
        assert " ".join(planted.split()) == "f(b, a); g(a);"
        assert lines == tuple(range(1, text.split("g")[0].rstrip().count("\n") + 2))
    assert replaced("x = a;\nx = a;", "x=a;", "", nth=1) == ("x = a;\n", (2,))
    assert spans("int a;", "inta;") == []
    with pytest.raises(AssertionError):
        replaced("x = a;", "x = a;", "", nth=1)
    laid_out = {
        path: re.sub(r"(?<=[,(]) ?", "\n    ", path.read_text("utf-8"))
        for path in (by_id("v08").source, by_id("v11").source)
    }
    for variant, mutation in cases():
        source = by_id(variant).source
        if not mutation.header and source in laid_out:
            as_it_stands = spans(source.read_text("utf-8"), mutation.old)
            assert len(spans(laid_out[source], mutation.old)) >= len(as_it_stands), mutation.name


def test_there_are_mutations_of_every_kernel_and_of_its_ptx() -> None:
    table = cases()
    assert len(table) >= 150
    assert {variant for variant, _ in table} == {v.id for v in LADDER}
    assert {mutation.header for _, mutation in table} >= {"mma.cuh", "async_copy.cuh"}
    names = [(variant, m.name, m.header, m.old, m.new, m.nth) for variant, m in table]
    assert len(set(names)) == len(names)


# Terms of CUDA, and formulas, that no kernel of the tables has in its text.
_TERMS = {"__threadfence", "exp(m_i", "m_i", "ln 2", "KV − S", "head % num_heads_kv", "partial'"}
_TERMS |= {"row 17", "cp.async.cx"}


def test_words_of_mutations_are_names_of_messages_or_terms_of_kernels() -> None:
    """No other prose, and no regular expression: a rewording must not make a bug unnamed."""
    folders = (KERNELS_DIR, OWN_KERNELS)
    kernels = "".join(p.read_text("utf-8") for d in folders for p in d.rglob("*.cu*"))
    written_blind = (*UNSEEN, *HELD_OUT, *THIN, *FRESH, *FIFTH, *SIXTH)
    for mutation in (*(m for _, m in cases()), *CLUSTERS, *COMPILER, *written_blind):
        assert mutation.words, mutation.name
        for word in mutation.words:
            if isinstance(word, tuple):
                assert is_name(word[0]), word
            else:
                is_known = isinstance(word, ErrorKind) or is_name(word) or word in _TERMS
                assert is_known or word in kernels, word


def test_every_name_of_a_cause_has_words() -> None:
    sets = [words for name, words in vars(causes).items() if name.isupper()]
    assert len(sets) > 50
    for word in {word for words in sets for word in words}:
        name = word if isinstance(word, str) else word[0]
        assert is_name(name) or isinstance(name, ErrorKind) or "_" not in name.lstrip("_"), name


def test_the_changed_line_names_no_bug_that_was_written_blind() -> None:
    text = "v01.cu:7: shared memory race: thread 3 waits at barrier 1 (v01.cu:9);"
    tuned_on = Mutation("", ("v01",), "", "", ("bug_key_too_many",))
    blind = Unseen("", ("v01",), "", "", ("bug_key_too_many",))
    assert tuned_on.is_named(text, ("v01.cu:7",))
    assert not tuned_on.is_named(text, ("v01.cu:70",))
    assert not blind.is_named(text, ("v01.cu:7",))
    assert not Unseen("", ("v01",), "", "", ("V", "K")).is_named("K/V head 1", ())
    assert Unseen("", ("v01",), "", "", ("V",)).is_named("V of head 1", ())
    last = "128 of 256 threads wait at barrier 4 (v17.cu:9)."
    assert Unseen("", ("v17",), "", "", causes.NAMED_BARRIER).is_named(last, ())


def test_a_change_that_does_not_compile_is_neither_found_nor_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bug = Unseen("no C++", ("v01",), "__global__", "no_such_word __global__", ("no_such",))
    bench_unseen.main([], [bug])
    printed = capsys.readouterr().out
    assert "DOES NOT COMPILE" in printed
    assert "| all | 1 | 0 | 0 |" in printed
