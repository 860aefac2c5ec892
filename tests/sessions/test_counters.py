"""Imported Nsight Compute counters beside the estimates, and the command that collects them."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from sessions_data import ncu_export
from words import says

from engine.attention.problem import Problem
from engine.base.units import format_us
from engine.cli import main, parser
from engine.cli.evaluate import ncu_command
from engine.history import History
from engine.model.kernel import Kernel
from engine.sessions.importers import ImportOptions, import_measurements
from engine.sessions.importers.nsight_compute import METRICS, counters_of, counters_table
from engine.sessions.tables import session_tables

OPTIONS = ImportOptions(variant="v01", device="L4", batch=1, num_heads=1, seqlen=128, head_dim=64)


def test_counters_are_shown_beside_the_estimates() -> None:
    snapshot = import_measurements(
        ncu_export(("attention_forward", 600_000)), name="x.csv", options=OPTIONS
    )
    (evaluation,) = snapshot.opened()
    assert counters_of(evaluation)[METRICS[1]].size_bytes == 1e6
    rows = {row[3]: row[4:6] for row in counters_table([evaluation], History()).texts}
    assert rows["achieved occupancy"] == ("30%", "33%")
    assert rows["registers per thread"] == ("100", "100")
    assert rows["bytes from and to DRAM"] == ("1,000 KiB", "64 KiB")
    kernel = Kernel.of("v01", "L4")
    time = History().time_of(kernel, evaluation.problem)
    assert time is not None
    assert rows["duration"] == ("600 µs", format_us(time.us))
    assert any(t.title.startswith("Nsight Compute") for t in session_tables(snapshot))


def test_other_evaluations_have_no_counters() -> None:
    text = b"batch,num_heads,seqlen,head_dim,kernel_ms\n1,1,128,64,0.5\n"
    snapshot = import_measurements(text, name="x.csv", options=OPTIONS)
    assert not counters_table(snapshot.opened(), History()).rows


def test_the_passes_of_a_variant_are_one_evaluation() -> None:
    launches = [("attention_partial", 40_000), ("attention_fuse", 5_000)] * 2
    options = ImportOptions(
        variant="v05", device="L4", batch=1, num_heads=1, seqlen=128, head_dim=64
    )
    (evaluation,) = import_measurements(
        ncu_export(*launches), name="x.csv", options=options
    ).evaluations
    assert evaluation.latency is not None
    assert evaluation.latency.samples_us == (45.0, 45.0)
    one = import_measurements(ncu_export(launches[0]), name="x.csv", options=options)
    assert one.evaluations[0].latency is not None
    assert one.evaluations[0].latency.median_us == 40.0


def test_the_problem_comes_from_the_files_own_columns() -> None:
    data = ncu_export(
        ("attention_forward", 600_000),
        columns=',"batch","heads","S","D"',
        values=',"2","4","256","64"',
    )
    snapshot = import_measurements(data, name="x.csv", options=ImportOptions(variant="v01"))
    assert snapshot.evaluations[0].problem == Problem(2, 4, 256, 64)


def test_the_command_is_one_that_the_command_line_understands() -> None:
    grouped = Problem(2, 8, 1, 64, seqlen_kv=4096, num_heads_kv=2, dtype="bfloat16")
    for name, problem, entries in (
        ("v05", replace(grouped, num_heads_kv=None), ["attention_partial", "attention_fuse"]),
        ("v14", grouped, ["attention_forward"]),
    ):
        plan = Kernel.of(name, "L4", {"num_splits": 4}).plan(problem)
        words = shlex.split(ncu_command(plan))
        assert words[0] == "ncu"
        assert words[words.index("--launch-count") + 1] == str(len(entries))
        assert words[words.index("--kernel-name") + 1] == f"regex:^({'|'.join(entries)})$"
        args = parser().parse_args(words[words.index("engine") + 1 :])
        assert (args.seqlen_kv, args.heads_kv) == (4096, problem.num_heads_kv)
        assert (args.dtype, args.backend) == ("bf16", "cuda")
        assert args.config == [f"{name}={value}" for name, value in plan.config.items()]


def test_profile_prints_the_command_and_imports_its_csv(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTUNE_SESSIONS", str(tmp_path / "store"))
    monkeypatch.setenv("ATTUNE_DATA_DIR", str(tmp_path / "data"))
    assert main(["profile", "v01", "--seqlen", "128", "--gpu", "L4"]) == 0
    assert capsys.readouterr().out.startswith("ncu --csv --page raw")
    path = tmp_path / "v01.csv"
    path.write_bytes(ncu_export(("attention_forward", 600_000)))
    argv = ["profile", "v01", "--seqlen", "128", "--gpu", "L4", "--import", str(path)]
    assert main(argv) == 0
    shown = capsys.readouterr().out
    assert says(shown, "achieved_occupancy")
    assert len(list((tmp_path / "store").glob("*.json.gz"))) == 1
    assert main(["profile", "v01", "--head-dim", "1000"]) == 2
