"""Presets: each has its model's shape, and some variant of the ladder supports it."""

from __future__ import annotations

import pytest
from words import raises

from engine.attention.config import fitting_config
from engine.attention.problem import Problem, find_preset, presets
from engine.base.errors import UnknownName
from kernels.ladder import LADDER


def test_names_are_unique_and_found() -> None:
    names = [p.name for p in presets()]
    assert len(set(names)) == len(names)
    for preset in presets():
        assert find_preset(f" {preset.name.upper()} ") is preset
        assert preset.note
        assert preset.source


def test_presets_of_a_group_are_adjacent() -> None:
    groups = [p.group for p in presets()]
    seen = list(dict.fromkeys(groups))
    assert groups == sorted(groups, key=seen.index)


def test_the_l4_study_has_its_twelve_problems() -> None:
    problems = {p.problem for p in presets() if p.group == "L4 study"}
    length = {Problem(1, 1, s, 64) for s in (64, 65, 128, 192, 256, 512)} | {Problem(1, 1, 4, 4)}
    batch = {Problem(b, h, 128, 64) for b, h in ((4, 1), (1, 4), (4, 4), (8, 4), (32, 8))}
    assert problems == length | batch
    assert len(problems) == 12


@pytest.mark.parametrize(
    ("name", "num_heads", "seqlen", "head_dim", "hidden_size"),
    [
        ("gpt2-small", 12, 1024, 64, 768),
        ("llama3-8b-8192", 32, 8192, 128, 4096),
        ("vit-b16", 12, 14 * 14 + 1, 64, 768),
        ("whisper-tiny-encoder", 6, 1500, 64, 384),
        ("whisper-base-encoder", 8, 1500, 64, 512),
        ("whisper-small-encoder", 12, 1500, 64, 768),
        ("whisper-medium-encoder", 16, 1500, 64, 1024),
        ("whisper-large-encoder", 20, 1500, 64, 1280),
        ("sdxl-4096", 10, 64 * 64, 64, 640),
        ("sdxl-1024", 20, 32 * 32, 64, 1280),
    ],
)
def test_preset_shapes_match_the_models(
    name: str, num_heads: int, seqlen: int, head_dim: int, hidden_size: int
) -> None:
    problem = find_preset(name).problem
    assert (problem.num_heads, problem.seqlen, problem.head_dim) == (num_heads, seqlen, head_dim)
    # The published hidden size is an independent check of heads and head_dim.
    assert num_heads * head_dim == hidden_size


@pytest.mark.parametrize("keys", [1024, 4096, 16_384])
def test_decoding_has_one_query_of_the_same_model(keys: int) -> None:
    problem = find_preset(f"llama3-8b-decode-{keys}").problem
    prompt = find_preset("llama3-8b-8192").problem
    assert (problem.seqlen, problem.num_keys) == (1, keys)
    assert (problem.num_heads, problem.head_dim) == (prompt.num_heads, prompt.head_dim)
    assert not problem.causal


def test_llama_shares_its_kv_heads() -> None:
    groups = {p.name: p.problem.head_group for p in presets() if p.problem.head_group > 1}
    llama = {p.name: p.problem.head_group for p in presets() if p.group == "Llama 3"}
    assert groups | llama == groups
    assert set(llama.values()) == {4, 8}  # 8B, 70B


def test_every_preset_runs_on_some_variant() -> None:
    for preset in presets():
        fitting = ((v, fitting_config(v, {}, preset.problem, None)) for v in LADDER)
        assert any(v.unsupported(preset.problem, c) is None for v, c in fitting), preset.name


def test_an_unknown_name_offers_the_nearest() -> None:
    with raises(UnknownName, "unknown_preset", "gpt2-small"):
        find_preset("gpt2")
    with raises(UnknownName, "unknown_preset"):
        find_preset("zzz")
