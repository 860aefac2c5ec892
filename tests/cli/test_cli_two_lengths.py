"""`--seqlen-kv` in every command that takes `--seqlen`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from words import says

from engine.attention.problem import Problem
from engine.cli import main
from engine.search.sweep.journal import SweepJournal

DECODE = ["--batch", "1", "--heads", "2", "--seqlen", "1", "--seqlen-kv", "300", "--gpu", "L4"]


def run_json(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, Any]]:
    code = main(argv)
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_evaluate_with_one_query_and_a_cache(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--backend", "cpu", "--config", "num_splits=32", "--json")
    code, out = run_json(capsys, "evaluate", "v05", *DECODE, *options)
    assert code == 0, out["reason"]
    assert out["status"] == "PASSED"
    assert (out["problem"]["seqlen"], out["problem"]["seqlen_kv"]) == (1, 300)
    assert out["correctness"]["passed"] is True
    assert out["occupancy"]["ctas"] == 2 * 32  # a query tile of each head, in 32 splits
    assert Problem(**out["problem"]).label() == "B1 H2 S1 KV300 D64 fp16"


def test_equal_lengths_are_printed_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["evaluate", "v01", "--seqlen", "64", "--gpu", "L4", "--backend", "cpu", "--json"]
    plain = run_json(capsys, *argv)[1]
    spelled = run_json(capsys, *argv, "--seqlen-kv", "64")[1]
    assert "seqlen_kv" not in spelled["problem"]
    assert spelled["problem"] == plain["problem"]


@pytest.mark.exhaustive
def test_a_preset_decodes_and_can_be_changed(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["evaluate", "v06", "--preset", "llama3-8b-decode-1024", "--heads", "1", "--gpu", "L4"]
    code, out = run_json(capsys, *argv, "--seqlen-kv", "130", "--backend", "cpu", "--json")
    assert code == 0, out["reason"]
    expected = {"seqlen": 1, "seqlen_kv": 130, "head_dim": 128, "dtype": "bfloat16"}
    assert out["problem"].items() >= expected.items()


@pytest.mark.parametrize(
    ("options", "name", "facts"),
    [
        (["--causal", "--seqlen", "400"], "causal_without_keys", ("100",)),
        (["--seqlen-kv", "0"], "size_too_small", ("seqlen_kv", "0")),
    ],
)
def test_invalid_lengths_give_one_sentence(
    options: list[str], name: str, facts: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "v05", *DECODE, *options]) != 0
    captured = capsys.readouterr()
    assert says(captured.err, name, *facts)
    assert len(captured.err.strip().splitlines()) == 1


def test_v12_names_the_number_of_keys_it_supports_in_a_message(
    capsys: pytest.CaptureFixture[str],
) -> None:
    few = ("--config", "num_warps=4", "--config", "keys_per_warp=32")
    out = run_json(capsys, "evaluate", "v12", *DECODE, *few, "--backend", "cpu", "--json")[1]
    assert out["status"] == "SKIPPED"
    assert says(out["reason"], "one_shot_keys", "128", "300")


def test_values_that_nobody_gave_fit_the_problem(capsys: pytest.CaptureFixture[str]) -> None:
    out = run_json(capsys, "evaluate", "v12", *DECODE, "--backend", "cpu", "--json")[1]
    assert out["status"] == "PASSED", out["reason"]
    assert out["config_origins"]["keys_per_warp"] == "fitting"
    assert says(out["notes"], "default_unfit", "keys_per_warp")


def test_recommend_batch_counts_the_memory_of_the_cache(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ["recommend-batch", "v05", "--gpu", "L4", "--seqlen", "1", "--seqlen-kv", "16384"]
    argv += ["--head-dim", "128", "--heads", "32", "--json", "--curve"]
    code, out = run_json(capsys, *argv)
    assert code == 0
    assert out["problem"]["seqlen_kv"] == 16_384
    first = out["curve"][0]
    cache_bytes = 2 * 32 * 16_384 * 128 * 2
    assert cache_bytes < first["device_bytes"] < 1.01 * cache_bytes
    # 256 MiB a sequence, so fewer than 100 fit in 24 GB.
    assert any(says(note, "do_fit_memory", "L4") for note in out["notes"])
    assert len(out["curve"]) < 100
    assert first["queries"] == 32


@pytest.mark.slow
def test_a_sweep_accepts_key_lengths(tmp_path: Path) -> None:
    path = tmp_path / "decode.jsonl"
    argv = ["sweep", "v05", "-S", "1", "--seqlen-kv", "64,128", "--gpu", "L4", "--no-execute"]
    argv += ["--tunable", "num_splits=1,4", "--defaults-only", "--journal", str(path), "--json"]
    assert main(argv) == 0
    journal = SweepJournal.open(path)
    assert [p.num_keys for p in journal.spec.space.problems] == [64, 128]
    assert len(journal.rows) == 4
    assert {row.problem.num_keys for row in journal.rows.values()} == {64, 128}
