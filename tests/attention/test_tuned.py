"""Tuned configs: stored by GPU, variant and problem class; errors for damaged files."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuned_data import ENTRY, PROBLEM
from words import raises

from engine.attention.config import (
    delete_tuned,
    find_tuned,
    find_variant,
    load_tuned,
    problem_class,
    save_tuned,
    tuned_path,
)
from engine.attention.problem import Problem
from engine.base.errors import StoreError

VARIANT = find_variant("v05")


@pytest.mark.parametrize(
    ("problem", "name"),
    [
        (Problem(1, 1, 128, 64), "D64 fp16 S65-128 BH1"),
        (Problem(1, 1, 129, 64), "D64 fp16 S129-256 BH1"),
        (Problem(2, 1, 2, 64, dtype="bfloat16"), "D64 bf16 S2 BH2"),
        (Problem(3, 4, 1, 128, causal=True), "D128 fp16 causal S1 BH9-16"),
        (Problem(1, 8, 1, 128, seqlen_kv=4096), "D128 fp16 S1 KV2049-4096 BH5-8"),
    ],
)
def test_problem_classes(problem: Problem, name: str) -> None:
    assert problem_class(problem) == name


@given(st.integers(1, 100_000), st.integers(1, 4096))
def test_a_class_spans_less_than_a_factor_of_two(seqlen: int, heads: int) -> None:
    name = problem_class(Problem(1, heads, seqlen, 64))
    for size, text in ((seqlen, name.split()[2][1:]), (heads, name.split()[3][2:])):
        low, _, high = text.partition("-")
        assert int(low) <= size <= int(high or low)
        assert int(high or low) < 2 * int(low)


def test_a_saved_config_applies_to_its_whole_class(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "tuned.json"
    assert load_tuned(path) == []
    assert find_tuned("L4", VARIANT, PROBLEM, path) is None
    assert save_tuned(ENTRY, path)
    assert find_tuned("L4", VARIANT, replace(PROBLEM, seqlen=100), path) == ENTRY
    for other in (
        replace(PROBLEM, seqlen=129),
        replace(PROBLEM, batch=2),
        replace(PROBLEM, causal=True),
        replace(PROBLEM, dtype="bfloat16"),
    ):
        assert find_tuned("L4", VARIANT, other, path) is None
    assert find_tuned("L40S", VARIANT, PROBLEM, path) is None
    assert find_tuned("L4", find_variant("v02"), PROBLEM, path) is None


def test_newer_entries_replace_older_but_predictions_never_measurements(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    better = replace(ENTRY, median_us=11.0, config={**ENTRY.config, "num_splits": 4})
    guess = replace(ENTRY, median_us=1.0, origin="predicted")
    elsewhere = replace(guess, gpu="T4")
    assert save_tuned(guess, path)
    assert save_tuned(ENTRY, path)
    assert save_tuned(better, path)
    assert not save_tuned(guess, path)
    assert save_tuned(elsewhere, path)
    assert load_tuned(path) == [better, elsewhere]


def test_a_config_no_longer_valid_for_the_variant_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    save_tuned(replace(ENTRY, config={"block_n": 32, "threads_per_row": 8}), path)
    assert find_tuned("L4", VARIANT, PROBLEM, path) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version": 2, "tuned": []}',
        '{"version": 1, "tuned": [{}]}',
        '{"version": 1, "tuned": 7}',
        "[" * 100_000,
        "\udcff",
    ],
)
def test_a_damaged_file_gives_a_message_and_is_not_changed(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tuned.json"
    path.write_text(text, errors="surrogateescape")
    before = path.read_bytes()
    with raises(StoreError, "tuned_file_foreign", "ATTUNE_TUNED"):
        load_tuned(path)
    with pytest.raises(StoreError):
        save_tuned(ENTRY, path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"median_us": -1.0},
        {"origin": "guessed"},
        {"config": {"block_n": "x"}},
        {"config": {"block_n": True}},
        {"surprise": 1},
    ],
)
def test_entries_are_checked(tmp_path: Path, wrong: dict[str, object]) -> None:
    path = tmp_path / "tuned.json"
    save_tuned(ENTRY, path)
    data = json.loads(path.read_text())
    data["tuned"][0] |= wrong
    path.write_text(json.dumps(data))
    with pytest.raises(StoreError):
        load_tuned(path)


def test_several_savers_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"

    def keep(number: int) -> None:
        for i in range(10):
            save_tuned(replace(ENTRY, gpu=f"GPU {number}-{i}"), path)

    threads = [threading.Thread(target=keep, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(load_tuned(path)) == 40
    assert [p.name for p in tmp_path.iterdir() if p.suffix != ".lock"] == ["tuned.json"]


def test_a_place_that_cannot_be_written_gives_a_one_sentence_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises(StoreError, "file_failed", "tuned.json"):
        save_tuned(ENTRY, tmp_path / "file" / "tuned.json")


def test_the_place_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ATTUNE_TUNED", str(tmp_path / "mine.json"))
    save_tuned(ENTRY)
    assert tuned_path() == tmp_path / "mine.json"
    assert find_tuned("L4", VARIANT, PROBLEM) == ENTRY


def test_deleting_a_tuned_config(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    elsewhere = replace(ENTRY, gpu="L40S")
    assert not delete_tuned(ENTRY, path)
    assert not path.exists()
    save_tuned(ENTRY, path)
    save_tuned(elsewhere, path)
    assert delete_tuned(replace(ENTRY, config={}, median_us=1.0), path)  # by GPU and problem
    assert load_tuned(path) == [elsewhere]
    assert not delete_tuned(ENTRY, path)


def test_the_data_folder_is_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATTUNE_TUNED", raising=False)
    monkeypatch.setenv("ATTUNE_DATA_DIR", str(tmp_path))
    assert tuned_path() == tmp_path / "tuned.json"
