"""The command `attune tuned`, and the origin of a config in `evaluate`."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from tuned_data import ENTRY
from words import says

from engine.attention.config import load_tuned, save_tuned
from engine.cli import main

OTHER = replace(ENTRY, gpu="H200", variant="v02", config={"block_n": 32, "threads_per_row": 2})


@pytest.fixture(autouse=True)
def _own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTUNE_TUNED", str(tmp_path / "tuned.json"))
    save_tuned(ENTRY)
    save_tuned(OTHER)


def test_tuned_configs_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tuned", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [asdict(OTHER), asdict(ENTRY)]
    assert main(["tuned", "v05", "--gpu", "L4"]) == 0
    out = capsys.readouterr().out
    assert "v05" in out
    assert "v02" not in out
    assert main(["tuned", "v01"]) == 0
    assert says(capsys.readouterr().out, "no_tuned_config")


def test_deleting_a_tuned_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tuned", "--forget"]) == 2
    assert says(capsys.readouterr().err, "forget_names_nothing")
    assert main(["tuned", "v05", "--forget", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [asdict(ENTRY)]
    assert load_tuned() == [OTHER]


def test_tuned_accepts_known_and_saved_gpus_and_kernels(
    capsys: pytest.CaptureFixture[str],
) -> None:
    save_tuned(replace(ENTRY, gpu="L5", variant="is_no_more"))
    assert main(["tuned", "is_no_more", "--gpu", "L5", "--forget"]) == 0
    assert load_tuned() == [OTHER, ENTRY]
    assert main(["tuned", "--gpu", "nvidia l4", "--json"]) == 0
    capsys.readouterr()
    unknown = (["is_no_more"], "'is_no_more'"), (["--gpu", "L5"], "L4")
    for argv, fact in unknown:
        assert main(["tuned", *argv]) == 2
        assert fact in capsys.readouterr().err


def test_a_damaged_file_gives_a_one_sentence_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tuned.json").write_text("[")
    assert main(["tuned"]) == 2
    assert says(capsys.readouterr().err, "tuned_file_foreign")


@pytest.mark.slow
@pytest.mark.exhaustive
def test_evaluate_names_the_origin_of_its_config(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["evaluate", "v05", "--seqlen", "128", "--gpu", "L4", "--backend", "cpu", "--json"]
    assert main(asked) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["config"] == ENTRY.config
    assert set(out["config_origins"].values()) == {"tuned"}
    assert main([*asked, "--config", "num_splits=4", "--defaults-only"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["config"]["num_splits"] == 4
    assert out["config"]["threads_per_row"] == 4
    assert "tuned" not in out["config_origins"].values()
