"""Where the values of the tunables come from: given, tuned, default."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tuned_data import ENTRY, PROBLEM
from words import says

from engine.attention.config import default_config, find_variant, resolve_config, save_tuned
from engine.choose.batch.recommend import BatchRequest, recommend_batch
from engine.devices import find_device
from engine.history import History
from engine.pipeline.evaluate import evaluate
from engine.pipeline.request import EvaluationRequest, resolve
from engine.search.space import Space, SweepOptions, point_id

V05 = find_variant("v05")
L4 = find_device("L4")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "tuned.json"
    monkeypatch.setenv("ATTUNE_TUNED", str(path))
    return path


def test_defaults_are_used_without_tuned_configs(file: Path) -> None:
    found = resolve_config(V05, {"num_splits": 8}, PROBLEM, L4)
    assert found.values == {**V05.default_config(), "num_splits": 8}
    assert says(found.describe(), "given_rest", "num_splits", "default")
    assert resolve_config(V05, {}, PROBLEM, None).describe() == "default"
    assert not file.exists()


def test_missing_values_are_the_tuned_ones(file: Path) -> None:
    save_tuned(ENTRY, file)
    found = resolve_config(V05, {}, PROBLEM, L4)
    assert found.values == ENTRY.config
    assert set(found.origins.values()) == {"tuned"}
    facts = ("B1 H1 S128 D64 fp16", "12.5 µs measured")
    assert says(found.describe(), "tuned_for_problem", *facts)
    found = resolve_config(V05, {"num_splits": 4}, PROBLEM, L4)
    assert found.values == {**ENTRY.config, "num_splits": 4}
    assert says(found.describe(), "given_rest", "num_splits", "B1 H1 S128 D64 fp16")
    assert says(found.describe(), "tuned_for_problem")
    for problem, gpu in ((replace(PROBLEM, seqlen=512), "L4"), (PROBLEM, "L40S")):
        assert resolve_config(V05, {}, problem, find_device(gpu)).values == V05.default_config()


def test_a_complete_config_is_never_changed(file: Path) -> None:
    file.write_text("damaged")  # not read
    config = {"block_n": 64, "threads_per_row": 4, "num_splits": 1}
    found = resolve_config(V05, config, PROBLEM, L4)
    assert (found.values, found.describe(), found.error) == (config, "given", "")


def test_values_incompatible_with_tuned_ones_use_defaults(file: Path) -> None:
    save_tuned(ENTRY, file)
    found = resolve_config(V05, {"nonsense": 1}, PROBLEM, L4)
    assert found.values == {**V05.default_config(), "nonsense": 1}
    assert found.tuned is None


def test_a_damaged_file_gives_a_message_and_defaults(file: Path) -> None:
    file.write_text("{")
    found = resolve_config(V05, {}, PROBLEM, L4)
    assert found.values == V05.default_config()
    assert says(found.error, "defaults_used")
    evaluation = evaluate(EvaluationRequest("v05", PROBLEM, gpu="L4", execute=False)).evaluation
    assert evaluation.config == V05.default_config()
    assert found.error in evaluation.notes


def test_evaluations_and_batches_use_the_tuned_config(file: Path) -> None:
    save_tuned(ENTRY, file)
    request = EvaluationRequest("v05", PROBLEM, gpu="L4", execute=False)
    assert resolve(request).config == ENTRY.config
    assert evaluate(request).evaluation.config == ENTRY.config
    batch = BatchRequest("v05", "L4", seqlen=128, head_dim=64, max_batch=2)
    result = recommend_batch(batch, History())
    assert result.config == ENTRY.config
    assert any(says(note, "tuned_for") for note in result.notes)


def test_sweeps_do_not_depend_on_what_was_tuned(file: Path) -> None:
    def points() -> list[tuple[str, dict[str, int]]]:
        space = Space(("v05",), (PROBLEM,), {"num_splits": (1, 4)}, own_values=False)
        found = space.points(SweepOptions(gpu="L4"))
        return [(p.id, dict(p.request.config)) for p in found]

    request = EvaluationRequest("v05", PROBLEM, gpu="L4")
    before = points(), point_id(request)
    save_tuned(ENTRY, file)
    assert (points(), point_id(request)) == before


@pytest.mark.parametrize(
    ("variant", "gpu", "num_ctas"),
    [("v19", "H100 PCIe", 114), ("v20", "H200", 132), ("v13", "L4", 116), ("v13", "A10", 144)],
)
def test_persistent_ctas_follow_the_sms_of_the_gpu(variant: str, gpu: str, num_ctas: int) -> None:
    found, device = find_variant(variant), find_device(gpu)
    assert resolve_config(found, {}, PROBLEM, device).values["num_ctas"] == num_ctas
    assert default_config(found, {}, device)["num_ctas"] == num_ctas
    space = Space((variant,), (PROBLEM,))
    options = SweepOptions(gpu=gpu)
    points = space.points(options)
    assert len(points) == space.count(gpu)
    assert {p.request.config["num_ctas"] % (device.num_sms or 0) for p in points} == {0}


def test_any_number_of_persistent_ctas_is_valid() -> None:
    v19 = find_variant("v19")
    assert v19.invalid_values({"num_ctas": 57}) is None
    for wrong in (0, 65_536):
        why = v19.invalid_values({"num_ctas": wrong})
        facts = ("v19", f"num_ctas={wrong}", "1 to 65,535", "4, 78, 114, 132")
        assert says(str(why), "value_not_offered", *facts)
    assert v19.default_config()["num_ctas"] == 132  # without a GPU
