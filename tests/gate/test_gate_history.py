"""Verdicts on thirty commits of a made-up repository: refactorings and all kinds of regression."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.cli import main
from engine.gate.judge import GateReport, judge
from engine.gate.trees import open_tree
from engine.versions.figures import GateVerdict
from tests.gate.repositories import commit, edit, git, kernel_file, repository
from tests.words import says

Edit = tuple[str, str]


@dataclass(frozen=True)
class Change:
    """One commit; a regression is fixed by the next one."""

    subject: str
    edits: tuple[Edit, ...]
    expected: str = ""  # a verdict the commit must get; empty: no regression
    what: str = ""  # the figure or words of that verdict
    file: str = "v08"


LOAD = "            vector = *reinterpret_cast<const uint4*>(source);"
BY_ELEMENT = (
    "            for (int e = 0; e < VECTOR; e++)\n"
    "                reinterpret_cast<element*>(&vector)[e] = source[e];"
)
HEADS = (
    "    const size_t q_head = q_index * seqlen * HEAD_DIM;       "
    "// where this head's Q and O begin\n"
    "    const size_t kv_head = kv_index * seqlen_kv * HEAD_DIM;  // and its K and V\n"
)
LOADED = "// Every warp reads rows that other warps loaded.\n"
BARRIER = f"{LOADED}        __syncthreads();\n"
REFACTORINGS = (
    Change("A comment", (("once for all tiles.", "once for all of the tiles."),)),
    Change("A local's name", (("inv_l", "inverse_sum"),)),
    Change("A function's name", (("multiply_scores", "multiply_keys"),)),
    Change("Brackets", (("i % VECTORS_PER_ROW * VECTOR", "(i % VECTORS_PER_ROW) * VECTOR"),)),
    Change("The kernel's name", (("attention_forward", "forward"),)),
    Change("A header's comment", (("#pragma once", "#pragma once\n// Wrappers."),), file="mma"),
    Change("The description's words", (("warps split Q.", "warps divide Q."),)),
    Change(
        "An inlined expression",
        (
            ("    const int group = num_heads / num_heads_kv;\n", ""),
            ("blockIdx.y / group", "blockIdx.y / (num_heads / num_heads_kv)"),
        ),
    ),
    Change("Two lines change places", ((HEADS, "".join(HEADS.splitlines(True)[::-1])),)),
    Change("A constant by its name", (("HEAD_DIM / 16;", "HEAD_DIM / WARP_ROWS;"),)),
)
REGRESSIONS = (
    Change(
        "No padding",
        (("ROW_STRIDE = HEAD_DIM + VECTOR", "ROW_STRIDE = HEAD_DIM"),),
        GateVerdict.COUNTED_WORSE,
        "bank conflicts",
    ),
    Change("One load at a time", (("unroll 4", "unroll 1"),), GateVerdict.SIMULATED_SLOWER, "time"),
    Change(
        "More CTAs asked for",
        (("(NUM_THREADS, 1)", "(NUM_THREADS, 8)"),),
        GateVerdict.COUNTED_WORSE,
        "spills",
    ),
    Change(
        "Shared memory wasted",
        (('smem_bytes = "2 * block_n', 'smem_bytes = "8 * block_n'),),
        GateVerdict.COUNTED_WORSE,
        "CTAs per SM",
    ),
    Change("Loads of 2 bytes", ((LOAD, BY_ELEMENT),), GateVerdict.COUNTED_WORSE, "instructions"),
    Change("A typing slip", (("float m_rmem[2]", "float m_rmem[2"),), "BROKEN", "v08_mma_sync.cu"),
    Change("D = 64 is dropped", (("[32, 64, 96, 128]", "[32, 96, 128]"),), "BROKEN", "head_dim 64"),
    Change(
        "A lane a row",
        (
            ("row = i / VECTORS_PER_ROW;", "row = i % ROWS;"),
            ("d = (i % VECTORS_PER_ROW) * VECTOR;", "d = i / ROWS * VECTOR;"),
        ),
        GateVerdict.COUNTED_WORSE,
        "sectors",
    ),
    Change(
        "A barrier is gone",
        ((BARRIER, LOADED),),
        "INCORRECT",
        "no barrier orders the two",
    ),
    Change(
        "The library's exponential",
        (("= fast_exp2(s_rmem", "= exp2f(s_rmem"),),
        GateVerdict.COUNTED_WORSE,
        "instructions",
    ),
)
# The commits of the history in order: refactorings, then each regression and its fix.
_ORDER: tuple[tuple[Change, bool], ...] = tuple(
    [(c, False) for c in REFACTORINGS] + [(c, back) for c in REGRESSIONS for back in (False, True)]
)


def _commit(repo: Path, change: Change, back: bool) -> None:
    path = repo / "kernels" / "mma.cuh" if change.file == "mma" else kernel_file(repo, change.file)
    edit(path, *((new, old) if back else (old, new) for old, new in change.edits))
    commit(repo, f"{'Mended: ' if back else ''}{change.subject}")


def _judge(repo: Path, place: Path, before: str, after: str) -> GateReport:
    trees = [open_tree(name, repo, place / name) for name in (before, after)]
    return judge(trees[0], trees[1])


def _said(report: GateReport, *, regressions: bool) -> list[tuple[str, str]]:
    return [(str(f.verdict), f.what) for *_, f in report.verdicts if f.is_regression is regressions]


def _check(report: GateReport, change: Change, back: bool) -> None:
    worse, other = _said(report, regressions=True), _said(report, regressions=False)
    if change.expected and not back:
        assert report.exit_code == 1
        assert any(v == change.expected and change.what in what for v, what in worse), worse
        return
    assert worse == []
    assert [kernel.kernel for kernel in report.kernels] == ["v08"]
    assert report.exit_code == 0
    if not change.expected:  # equal machine code has no verdict
        assert {v for v, _ in other} <= {GateVerdict.SAME_CODE, "UNDECIDED"}, other
    elif change.expected == "BROKEN":
        assert "FIXED" in {v for v, _ in other}
    elif change.expected != "INCORRECT":  # a fix of a wrong result is not compared
        assert {v for v, _ in other} & {GateVerdict.COUNTED_BETTER, GateVerdict.SIMULATED_FASTER}, (
            other
        )


def _judged_history(place: Path, chosen: Sequence[int]) -> None:
    repo = repository(place / "r", "v08")
    for number, (change, back) in enumerate(_ORDER):
        before = git(repo, "rev-parse", "HEAD").strip()
        _commit(repo, change, back)
        if number in chosen:
            after = git(repo, "rev-parse", "HEAD").strip()
            report = _judge(repo, place / str(number), before, after)
            try:
                _check(report, change, back)
            except AssertionError as error:
                raise AssertionError(f"{change.subject}, back {back}: {error}") from None


def test_there_are_thirty_commits() -> None:
    assert len(_ORDER) == 30


@pytest.mark.exhaustive
def test_some_of_thirty_commits_get_the_right_verdict(tmp_path: Path) -> None:
    """A comment, equivalent code, bank conflicts and their fix, a wrong result, a race."""
    _judged_history(tmp_path, (0, 7, 10, 11, 20, 24))


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_each_of_thirty_commits_gets_the_right_verdict(tmp_path: Path) -> None:
    _judged_history(tmp_path, range(len(_ORDER)))


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_execution_of_native_code_names_the_missing_barrier(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r", "v08")
    edit(kernel_file(repo, "v08"), (BARRIER, LOADED))
    commit(repo, "A barrier is gone")
    trees = [open_tree(name, repo, tmp_path / name) for name in ("HEAD~1", "HEAD")]
    report = judge(trees[0], trees[1], native=True)
    found = _said(report, regressions=True)
    wrong = [what for verdict, what in found if verdict == "INCORRECT"]
    assert says(wrong, "read_before_written"), found
    assert says(report.remarks, "checked_by_host_builds")


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_command_names_what_is_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    repo = repository(tmp_path / "r", "v08")
    edit(kernel_file(repo, "v08"), ("ROW_STRIDE = HEAD_DIM + VECTOR", "ROW_STRIDE = HEAD_DIM"))
    monkeypatch.chdir(repo)
    comment = tmp_path / "comment.md"
    assert main(["gate", "HEAD", "--json", "--markdown", str(comment)]) == 1
    found = json.loads(capsys.readouterr().out)
    assert {"kernel", "problem", "gpu", "verdict", "what"} <= set(found["verdicts"][0])
    assert found["verdicts"][0]["kernel"] == "v08"
    assert found["verdicts"][0]["gpu"] == "L4"
    assert found["figures"][0]["after"]["conflicts"] > 0
    text = comment.read_text()
    assert GateVerdict.COUNTED_WORSE in text
    assert "<details>" in text
    assert "predictions" in text
    assert says(text, "native_code_change")
