"""The commands `sessions`, `report`, `rerun` and `compare`."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hostile import STRINGS, filled, whole
from words import says

from engine.attention.evaluation import Evaluation, Latency
from engine.attention.problem import Problem
from engine.cli import main
from engine.pipeline.evaluate import evaluate
from engine.pipeline.request import EvaluationRequest
from engine.sessions.session import make_snapshot, make_source
from engine.sessions.snapshot import Snapshot, dumps, loads
from kernels.characters import hidden_in

OWN_KERNELS = Path(__file__).parents[1] / "own_kernels" / "kernels"
SHIPPED = "20261121T000000Z_l4_v01_7-problems.json"
CSV = "B,H,S,D,kernel_ms,colour\n1,1,128,64,0.5,red\n1,1,256,64,0.9,blue\n"
ENVIRONMENT = {"gpus": [{"name": "NVIDIA L4", "max_sm_clock_mhz": 2040}], "driver": "570.1"}


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTUNE_SESSIONS", str(tmp_path / "store"))


@pytest.fixture(scope="module")
def passed() -> Evaluation:
    request = EvaluationRequest("v01", Problem(1, 1, 32, 32), {}, gpu="L4", backend="cpu")
    found = evaluate(request).evaluation
    assert found.status == "PASSED", found.reason
    return found


def timed(evaluation: Evaluation, us: float) -> Evaluation:
    samples = tuple(us * (1 + 0.001 * (i % 5)) for i in range(30))
    middle = sorted(samples)[15]
    latency = Latency("measured", middle, us, max(samples), "test data", samples_us=samples)
    return replace(evaluation, latency=latency)


def snapshot_of(*evaluations: Evaluation, **fields: object) -> Snapshot:
    return make_snapshot(evaluations, environment=ENVIRONMENT, **fields)


def file_of(folder: Path, name: str, snapshot: Snapshot) -> str:
    path = folder / name
    path.write_bytes(dumps(snapshot))
    return str(path)


def test_the_list_has_shipped_sessions_and_filters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sessions", "--gpu", "L4", "--json"]) == 0
    assert [info["name"] for info in json.loads(capsys.readouterr().out)] == [SHIPPED]
    assert main(["sessions", "list", "--problem", "S128 D64", "--variant", "v01"]) == 0
    assert SHIPPED in capsys.readouterr().out
    assert main(["sessions", "list", "--since", "2999-01-01"]) == 0
    assert says(capsys.readouterr().out, "none_snapshots_filtered")


def test_import_show_and_remove(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"
    table.write_text(CSV)
    assert main(["sessions", "import", str(table), "--variant", "v01", "--gpu", "L4"]) == 0
    name = next((tmp_path / "store").glob("*.json.gz")).name
    assert name in capsys.readouterr().out
    assert main(["sessions", "show", name]) == 0
    out = capsys.readouterr().out
    assert "500 µs" in out
    assert "recorded" in out
    assert main(["sessions", "remove", name]) == 0
    assert not (tmp_path / "store" / name).exists()
    assert (tmp_path / "store" / "trash" / name).exists()


def test_one_bad_file_of_several_imports_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    good.write_text(CSV)
    bad.write_text(CSV.replace("0.9", "fast"))
    options = ["--variant", "v01", "--gpu", "L4"]
    assert main(["sessions", "import", str(good), str(bad), *options]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: bad.csv")
    assert err.count("\n") == 1
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("code", "argv"),
    [
        (2, ["sessions", "show", "missing.json"]),
        (2, ["sessions", "remove", "../../etc/passwd"]),
        (2, ["sessions", "remove", SHIPPED]),
        (2, ["sessions", "import", "/nowhere.csv"]),
        (2, ["profile", "v05", "--import", "/nowhere.csv"]),
        (2, ["report", "/tmp", "-o", "x.html"]),
        (2, ["report", SHIPPED, "--no-advice", "-o", "/nowhere/x.html"]),
        (2, ["compare", SHIPPED, "/dev/null"]),
        (2, ["compare", SHIPPED, "--pair", "v01", "²:v01"]),
        (2, ["compare", SHIPPED, "--pair", "v01", "v01,block_n=--3"]),
        (2, ["rerun", SHIPPED, "--gpu", "L5"]),
        (2, ["sessions", "decide", SHIPPED, "--phase", " "]),
        (2, ["variants", "--markdown", "--into", "/dev/null"]),
        (2, ["rerun", "no such thing"]),
        (
            2,
            ["compare", SHIPPED, "missing.json"],
        ),  # exit code 1 would mean that a kernel became slower
    ],
)
def test_impossible_commands_give_one_sentence(
    capsys: pytest.CaptureFixture[str], code: int, argv: list[str]
) -> None:
    assert main(argv) == code
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_the_format_of_a_report_follows_the_file_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page, text = tmp_path / "r.html", tmp_path / "r.md"
    for path in (page, text):
        assert main(["report", SHIPPED, "-o", str(path), "--no-advice"]) == 0
    assert page.read_text().startswith("<!doctype html>")
    assert "<svg" in page.read_text()
    assert "## Results" in text.read_text()
    assert not says(text.read_text(), "try_next_what")
    assert main(["report", SHIPPED, "-o", str(tmp_path / "r.pdf")]) == 2
    assert ".pdf" in capsys.readouterr().err


def test_compare_exits_1_when_something_got_slower(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, passed: Evaluation
) -> None:
    fast = file_of(tmp_path, "fast.json.gz", snapshot_of(timed(passed, 10.0)))
    slow = file_of(tmp_path, "slow.json.gz", snapshot_of(timed(passed, 13.0)))
    assert main(["compare", fast, slow, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [row["verdict"] for row in found["regressions"]] == ["SLOWER"]
    assert found["rows"][0]["origin"] == "recorded"
    # Swapped it is faster; with --baseline it is slower again.
    assert main(["compare", slow, fast]) == 0
    assert "FASTER" in capsys.readouterr().out
    assert main(["compare", slow, fast, "--baseline", fast, "--csv"]) == 1
    assert "SLOWER" in capsys.readouterr().out
    assert main(["compare", fast, fast, "--markdown"]) == 0
    assert "fast.json.gz \\(2\\)" in capsys.readouterr().out


def test_compare_needs_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", SHIPPED]) == 2
    assert says(capsys.readouterr().err, "compare_needs_two")


def test_environments_are_compared_only_when_asked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, passed: Evaluation
) -> None:
    fast = file_of(tmp_path, "fast.json.gz", snapshot_of(timed(passed, 10.0)))
    other = make_snapshot([timed(passed, 13.0)], environment={**ENVIRONMENT, "driver": "580.2"})
    slow = file_of(tmp_path, "slow.json.gz", other)
    assert main(["compare", fast, slow]) == 0
    out = capsys.readouterr().out
    assert "driver: 570.1 → 580.2" in out
    assert main(["compare", fast, slow, "--across"]) == 1
    assert says(capsys.readouterr().out, "across_different_conditions")


def test_rerun_uses_the_local_source_with_a_note(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, passed: Evaluation
) -> None:
    theirs = make_source("v01_fa1_baseline.cu", "#error never compiled\n")
    foreign = replace(passed, source_sha256=theirs.sha256)
    other = replace(passed, problem=Problem(1, 1, 48, 32))
    file = file_of(tmp_path, "f.json.gz", snapshot_of(foreign, other, sources=[theirs]))
    argv = ["rerun", file, "--only", "v01*S32*", "--backend", "cpu", "--json", "--save"]
    assert main(argv) == 0
    captured = capsys.readouterr()
    assert says(captured.err, "of_the_snapshot", "v01_fa1_baseline.cu")
    found = json.loads(captured.out)
    assert len(found["rows"]) == 1
    assert found["rows"][0]["status"] == "PASSED"
    saved = next((tmp_path / "store").glob("*.json.gz"))
    assert loads(saved.read_bytes(), name=saved.name).evaluations[0].problem.seqlen == 32


@pytest.fixture
def type_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that sets the answer typed at the terminal."""
    return lambda text: monkeypatch.setattr("sys.stdin", io.StringIO(text))


@pytest.mark.parametrize(("answer", "code"), [("no\n", 1), ("", 1)])
def test_foreign_source_is_not_compiled_without_confirmation(
    capsys: pytest.CaptureFixture[str],
    type_in: Callable[[str], None],
    tmp_path: Path,
    passed: Evaluation,
    answer: str,
    code: int,
) -> None:
    theirs = make_source("v01_fa1_baseline.cu", "#error theirs was compiled\n")
    foreign = replace(passed, source_sha256=theirs.sha256)
    file = file_of(tmp_path, "f.json.gz", snapshot_of(foreign, sources=[theirs]))
    type_in(answer)
    assert main(["rerun", file, "--backend", "cpu", "--use-their-source"]) == code
    captured = capsys.readouterr()
    assert "#error theirs was compiled" in captured.err
    assert says(captured.err, "nothing_was_run")
    assert captured.out == ""


def test_terminal_escapes_of_a_file_are_removed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """No command prints a carriage return from any string of a file."""
    raw = filled("int a;\r\x1b[2Jb\u202e\u200b", STRINGS)
    assert json.dumps(raw) == json.dumps(whole())
    raw = filled("over\rwritten\x0c\u200b", STRINGS)
    assert json.dumps(raw).count("written") > 3
    file = tmp_path / "evil.json"
    file.write_text(json.dumps(raw), encoding="utf-8")
    for argv in (["sessions", "show"], ["rerun"], ["compare"]):
        files = [str(file)] * (1 + (argv == ["compare"]))
        assert main([*argv, *files]) in (0, 1, 2)
        captured = capsys.readouterr()
        assert hidden_in(captured.out + captured.err) == ""


def test_a_compilers_log_is_shown_with_all_its_characters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ATTUNE_KERNELS", "")  # the test uses the kernel directly
    source = (OWN_KERNELS / "naive_flash.cu").read_text(encoding="utf-8")
    own = tmp_path / "mine.cu"
    own.write_text(source + "\n#error \x1b[8mnobody sees this\n", encoding="utf-8")
    sidecar = (OWN_KERNELS / "naive_flash.attune.toml").read_text(encoding="utf-8")
    (tmp_path / "mine.attune.toml").write_text(sidecar, encoding="utf-8")
    argv = ["evaluate", str(own), "--batch", "1", "--heads", "1", "--seqlen", "32"]
    assert main([*argv, "--head-dim", "32", "--backend", "cpu"]) == 1
    captured = capsys.readouterr()
    assert "^[[8mnobody sees this" in captured.err
    assert hidden_in(captured.out + captured.err) == ""


def test_foreign_source_is_compiled_after_confirmation(
    capsys: pytest.CaptureFixture[str],
    type_in: Callable[[str], None],
    tmp_path: Path,
    passed: Evaluation,
) -> None:
    text = "#error theirs was compiled\n"
    theirs = make_source("../../v01_fa1_baseline.cu", text)
    assert theirs.sha256 == hashlib.sha256(text.encode()).hexdigest()
    foreign = replace(passed, source_sha256=theirs.sha256)
    file = file_of(tmp_path, "f.json.gz", snapshot_of(foreign, sources=[theirs]))
    type_in("yes\n")
    argv = ["rerun", file, "--backend", "cpu", "--use-their-source", "--json"]
    assert main(argv) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["rows"][0]["status"] == "COMPILE_ERROR"
    assert found["rows"][0]["broken"] is True


def test_kernels_that_are_not_on_the_ladder_are_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = "20261121T000000Z_h200_sdpa_43-problems.json"
    assert main(["rerun", name, "--only", "S128 D64"]) == 1
    assert "'sdpa'" in capsys.readouterr().err
    assert main(["rerun", name, "--only", "nothing like it"]) == 2
    assert says(capsys.readouterr().err, "no_evaluation_matches")


def test_compare_by_problem_picks_pairs_and_exits_0_for_registers_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, passed: Evaluation
) -> None:
    other = replace(passed, variant="v05", config={"num_splits": 4})
    first = file_of(tmp_path, "v01.json", snapshot_of(passed))
    second = file_of(tmp_path, "v05.json", snapshot_of(other))
    both = file_of(tmp_path, "both.json", snapshot_of(passed, other))
    assert main(["compare", first, second, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["baseline_variant"], row["variant"]) == ("v01", "v05")
    assert main(["compare", both, "--pair", "v01", "v05,num_splits=4"]) == 0
    assert says(capsys.readouterr().out, "registers_per_thread")
    assert main(["compare", both, "--pair", "v01", "v07"]) == 2
    assert says(capsys.readouterr().err, "filter_matches_nothing", "v07")
    main_pass = passed.passes[0]
    more = replace(main_pass.resources, registers_per_thread=255)
    grown = replace(passed, passes=(replace(main_pass, resources=more),))
    after = file_of(tmp_path, "after.json", snapshot_of(grown))
    assert main(["compare", first, after]) == 0
    assert says(capsys.readouterr().out, "registers_per_thread_before", "255")
