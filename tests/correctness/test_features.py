"""Windows, softcaps, ALiBi, sinks and lengths: reference, kernels, planted bugs, machine code."""

from __future__ import annotations

import dataclasses
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from slow_cases import one_in
from words import raises

from engine.attention.config import resolve_config
from engine.attention.evaluation import Correctness
from engine.attention.fp8 import e4m3_bytes, e4m3_values
from engine.attention.plan import make_plan, target_arch
from engine.attention.problem import Preset, Problem, feature_options, parse_seqlens, presets
from engine.attention.tensors import alibi_slopes, make_inputs
from engine.attention.tensors import decode as decoded
from engine.backends.base import RunOptions
from engine.backends.cpu import CpuBackend
from engine.backends.machine_code import MachineCodeBackend
from engine.base.errors import InvalidProblem, UnknownName
from engine.base.schema import decode, encode
from engine.correctness import check_output
from engine.correctness.expected import expect
from engine.correctness.reference import reference
from engine.cuda_source.nvrtc import compile_kernel
from engine.interface.attention_kernel import problem_of
from engine.machine_code.cubin import read_cubin
from kernels.ladder import LADDER, by_id
from kernels.variant import FEATURES, KERNELS_DIR, Dtype, Variant

_WIDE = {"batch": 2, "num_heads": 4, "head_dim": 64}
CHUNKED = Problem(**_WIDE, seqlen=70, seqlen_kv=150, causal=True)
WINDOW = Problem(**_WIDE, seqlen=130, causal=True, window=37)
TWO_SIDED = Problem(**_WIDE, seqlen=100, seqlen_kv=150, window=20)
SOFTCAP = Problem(**_WIDE, seqlen=70, softcap=2.0)
ALIBI = Problem(**_WIDE, seqlen=65, seqlen_kv=130, alibi=True)
SINKS = Problem(**_WIDE, seqlen=70, causal=True, sinks=True)
ALL = Problem(
    **_WIDE, seqlen=40, seqlen_kv=140, causal=True, window=33, softcap=3.0, alibi=True, sinks=True
)
DEEPSEEK = Problem(2, 2, 100, 192, causal=True, head_dim_v=128)
VARLEN = Problem(3, 4, 100, 64, causal=True, seqlens=(5, 17, 100))
DECODING = Problem(3, 4, 1, 64, seqlen_kv=100, seqlens=(1, 64, 100))
WIDEST = Problem(2, 4, 70, 256, causal=True, seqlen_kv=100)
FP8 = Problem(2, 8, 3, 64, seqlen_kv=100, num_heads_kv=4, kv_dtype="float8_e4m3")
PROBLEMS = (
    *(CHUNKED, WINDOW, TWO_SIDED, SOFTCAP, ALIBI, SINKS, ALL, VARLEN, DECODING, FP8),
    *(DEEPSEEK, WIDEST),
)
TAKING = tuple(v.id for v in LADDER if set(v.takes) - {"lse"})


@pytest.fixture(scope="module")
def cpu() -> Iterator[CpuBackend]:
    backend = CpuBackend()
    yield backend
    backend.close()


def _by_hand(problem: Problem) -> np.ndarray:
    """Return the reference as a loop over queries, written from the definitions."""
    inputs = make_inputs(problem)
    q, k, v = (decoded(x, problem.dtype).astype(float) for x in (inputs.q, inputs.k, inputs.v))
    out = np.zeros(problem.out_shape)
    for b, h in np.ndindex(problem.batch, problem.num_heads):
        keys = problem.num_keys if problem.seqlens is None else problem.seqlens[b]
        queries = min(problem.seqlen, keys) if problem.seqlens else problem.seqlen
        kv = h // problem.head_group
        for i in range(queries):
            p = i + keys - queries
            top = keys if not problem.causal else min(keys, p + 1)
            seen = [j for j in range(top) if not problem.window or abs(p - j) < problem.window]
            s = k[b, kv, seen] @ q[b, h, i] * problem.softmax_scale
            if problem.softcap:
                s = problem.softcap * np.tanh(s / problem.softcap)
            if problem.alibi:
                s = s - alibi_slopes(problem.num_heads)[h] * np.abs(p - np.array(seen))
            weights = np.exp(s)
            total = weights.sum()
            if inputs.sinks is not None:
                total += np.exp(float(inputs.sinks[h]))
            out[b, h, i] = weights @ v[b, kv, seen] / total
    return out


@pytest.mark.parametrize("problem", PROBLEMS, ids=Problem.label)
def test_the_reference_is_the_definition(problem: Problem) -> None:
    assert np.abs(reference(make_inputs(problem)) - _by_hand(problem)).max() < 1e-12


@pytest.mark.parametrize("problem", PROBLEMS, ids=Problem.label)
def test_files_labels_and_options_hold_the_features(problem: Problem) -> None:
    assert decode(Problem, encode(problem)) == problem
    assert all(word in problem.label() for word in problem.feature_words())
    plain = Problem(**{**_WIDE, "seqlen": 70})
    assert set(encode(plain)) == {*_WIDE, "seqlen", "causal", "dtype"}
    assert not feature_options(plain)


def test_alibi_slopes_match_press_et_al() -> None:
    assert alibi_slopes(8).tolist() == [2.0**-n for n in range(1, 9)]
    assert alibi_slopes(6).tolist() == [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]


@pytest.mark.parametrize(
    "wrong",
    [
        {"causal": True, "seqlen_kv": 100},
        {"window": 0},
        {"window": 5, "seqlen_kv": 100},
        {"softcap": 0.0},
        {"softcap": float("nan")},
        {"alibi": 1},
        {"seqlens": (5, 17)},
        {"seqlens": (0, 128)},
        {"direction": "sideways"},
        {"head_dim_v": 0},
    ],
    ids=str,
)
def test_invalid_features_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidProblem):
        Problem(**{"batch": 2, "num_heads": 1, "seqlen": 128, "head_dim": 64, **wrong})


def test_lengths_are_drawn_by_their_seed() -> None:
    assert parse_seqlens("5,17,200") == (5, 17, 200)
    drawn = parse_seqlens("uniform:8:16:512:3")
    assert drawn == parse_seqlens("uniform:8:16:512:3") != parse_seqlens("uniform:8:16:512:4")
    assert len(drawn) == 8
    assert 16 <= min(drawn) <= max(drawn) <= 512


@pytest.mark.parametrize("preset", presets(), ids=lambda preset: preset.name)
def test_a_preset_has_a_source_and_a_rung_that_supports_it(preset: Preset) -> None:
    assert preset.source
    problem = preset.problem
    configs = [(v, resolve_config(v, {}, problem, None).values) for v in LADDER]
    assert any(v.unsupported(problem, config) is None for v, config in configs)


def test_options_override_those_of_a_preset() -> None:
    local = problem_of({"preset": "gpt-oss-local", "seqlen": 256})
    assert (local.seqlen, local.window, local.sinks, local.kv_heads) == (256, 128, True, 8)
    assert problem_of({"preset": "gpt-oss-local", "heads": 4}).kv_heads == 4
    assert problem_of({"preset": "llama3-8b-varlen"}).seqlens is not None
    assert problem_of({"preset": "llama3-8b-varlen", "batch": 2}).seqlens is None
    assert problem_of({"preset": "gpt-oss-local", "seqlens": (5, 9)}).label().startswith("B2 H64")
    with raises(UnknownName, "unknown_preset", "gpt-oss-local"):
        problem_of({"preset": "gpt-oss-lokal"})


def test_packed_sequences_are_those_of_the_padded_tensors() -> None:
    inputs, v10 = make_inputs(VARLEN), by_id("v10")
    plan = make_plan(v10, VARLEN, v10.default_config())
    tensors = plan.tensors_of(inputs)
    assert {n: x.nbytes for n, x in tensors.items()} == {
        n: plan.buffer_bytes[n] for n in ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k")
    }
    assert tensors["q"].shape == (122, 4, 64)
    assert tensors["cu_seqlens_q"].tolist() == [0, 5, 22, 122]
    raw = np.ascontiguousarray(tensors["q"]).reshape(-1).view(np.uint8)
    assert np.array_equal(plan.output_of(raw), inputs.q)
    decoding = make_plan(v10, DECODING, v10.default_config()).tensors_of(make_inputs(DECODING))
    assert decoding["cu_seqlens_q"].tolist() == [0, 1, 2, 3]
    assert decoding["cu_seqlens_k"].tolist() == [0, 1, 65, 165]


def test_rungs_without_a_feature_are_skipped_with_a_reason() -> None:
    for variant in LADDER:
        for problem in PROBLEMS:
            why = variant._unsupported_features(problem.features)
            missing = [FEATURES[f] for f in problem.features if f not in variant.takes]
            assert (why is None) == (not missing)
            assert all(what in str(why) for what in missing)
        backward = dataclasses.replace(SOFTCAP, direction="backward")
        assert "backward" in str(variant.unsupported(backward, variant.default_config()))


_RUNS = [(v, p, s) for v in TAKING for p in PROBLEMS for s in ("in_order", "random")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant_id", "problem", "schedule"),
    one_in(199, _RUNS, slow=997),
    ids=lambda value: value.label() if isinstance(value, Problem) else value,
)
def test_kernels_with_features_are_correct(
    cpu: CpuBackend, variant_id: str, problem: Problem, schedule: str
) -> None:
    variant = by_id(variant_id)
    shared = dataclasses.replace(problem, num_heads_kv=2 if variant.gqa else None)
    config = resolve_config(variant, {}, shared, None).values
    if (why := variant.unsupported(shared, config)) is not None:
        if problem in (DEEPSEEK, WIDEST):
            assert "head_dim" in why
            return
        assert not set(problem.features) <= set(variant.takes)
        return
    found = _verdict(cpu, variant_id, shared, None, schedule=schedule)
    assert found.passed, (shared.label(), found.reason, found.findings)


def _config_of(variant: Variant, problem: Problem, turn: int) -> dict[str, int]:
    """Return a config that supports the problem, a different one for each turn."""
    for skipped in range(turn, turn + 60):
        drawn = random.Random(skipped)
        config = {t.name: drawn.choice(t.values) for t in variant.tunables}
        if variant.unsupported(problem, config) is None:
            return config
    return variant.default_config()


# Every rung with every feature in both formats, at every D, with and without a causal mask.
_BUILDS = [
    (variant_id, number, head_dim, dtype)
    for head_dim, dtype in ((128, "bfloat16"), (96, "float16"), (32, "bfloat16"), (64, "bfloat16"))
    for number in range(PROBLEMS.index(DEEPSEEK))
    for variant_id in TAKING
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant_id", "number", "head_dim", "dtype"), one_in(298, _BUILDS, slow=10**4)
)
def test_machine_code_with_features_is_correct(
    variant_id: str, number: int, head_dim: int, dtype: Dtype
) -> None:
    variant, asked = by_id(variant_id), PROBLEMS[number]
    heads = 2 if variant.gqa else None
    problem = dataclasses.replace(asked, head_dim=head_dim, dtype=dtype, num_heads_kv=heads)
    if head_dim == 96:
        problem = dataclasses.replace(problem, causal=not problem.causal)
    config = _config_of(variant, problem, number + head_dim)
    if variant.unsupported(problem, config) is not None:
        assert not set(problem.features) <= set(variant.takes)
        return
    plan, inputs = make_plan(variant, problem, config), make_inputs(problem)
    is_new = variant.arch_specific or config.get("cluster_size", 1) > 1
    options = RunOptions(arch="sm_90" if is_new else "sm_80", repeat=False)
    result = MachineCodeBackend().run(plan, inputs, options)
    assert result.out is not None, (config, result.reason)
    found = check_output(inputs, result, plan=plan)
    assert found.passed, (config, found.reason, found.findings)


_NEXT_SCALE = "v_scale[(kv_head_index + 1) % num_heads_kv]"
# (variant, problem, text, its replacement, code of the finding)
_BUGS = (
    ("v10", CHUNKED, "(query) + NUM_KEYS - NUM_QUERIES", "(query)", "causal_corner"),
    ("v14", CHUNKED, "(query) + NUM_KEYS - NUM_QUERIES", "(query) + NUM_KEYS", "causal_mask"),
    ("v01", CHUNKED, "(key) <= (position)", "(key) < (position)", "causal_diagonal"),
    ("v10", WINDOW, "(key) > (position) - WINDOW", "(key) >= (position) - WINDOW", "window"),
    ("v01", WINDOW, "(key) > (position) - WINDOW", "(key) > (position) - WINDOW + 1", "window"),
    ("v10", TWO_SIDED, "(key) < (position) + WINDOW", "true", "window"),
    ("v01", SOFTCAP, "if constexpr (SOFTCAP > 0.0f)", "if constexpr (false)", "softcap"),
    ("v10", SOFTCAP, "(SOFTCAP - 2.0f * SOFTCAP *", "(1.0f - 2.0f *", "softcap"),
    ("v10", ALIBI, "score -= slope", "score += slope", "alibi"),
    ("v01", ALIBI, "alibi_slopes[head] /", "alibi_slopes[head + 1 - 1] * 0.0f /", "alibi"),
    ("v14", ALIBI, "alibi_slopes[head] / softmax_scale", "alibi_slopes[head]", "alibi"),
    ("v10", SINKS, "if constexpr (HAS_SINKS)", "if constexpr (false)", "sinks"),
    ("v14", SINKS, "sinks[head] * LOG2_E", "sinks[head]", "sinks"),
    ("v01", VARLEN, "(given).seqlens[batch]), (given).seqlens[batch]", "100), 100", "rows"),
    ("v01", DEEPSEEK, "(key) <= (position)", "(key) < (position)", "causal_diagonal"),
    ("v10", VARLEN, "cu_seqlens_k[blockIdx.z] * num", "cu_seqlens_k[0] * num", "rows"),
    ("v11", VARLEN, "#define Q_ROW (num_heads * HEAD_DIM)", "#define Q_ROW HEAD_DIM", "rows"),
    ("v10", DECODING, "cu_seqlens_k[(batch) + 1] -", "cu_seqlens_k[3] -", "rows"),
    ("v14", FP8, "k_scale[kv_head_index]", "k_scale[0]", "kv_scale"),
    ("v14", FP8, "v_scale[kv_head_index]", "k_scale[kv_head_index]", "kv_scale"),
    ("v14", FP8, "inv_l = given.v_scale[kv_head_index] *", "inv_l =", "kv_scale"),
    ("v21", FP8, "given.k_scale[kv_head_index] *", "", "kv_scale"),
    ("v21", FP8, "v_scale[kv_head_index]", _NEXT_SCALE, "kv_scale"),
)


def _mutated(folder: Path, variant_id: str, problem: Problem) -> Path:
    """Return the file in the folder in which the bug is planted."""
    return folder / ("features.cuh" if problem is not FP8 else by_id(variant_id).source.name)


def test_every_planted_bug_has_a_place_in_its_kernel() -> None:
    for variant_id, problem, old, *_ in _BUGS:
        assert old in _mutated(KERNELS_DIR, variant_id, problem).read_text("utf-8"), old


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant_id", "problem", "old", "new", "code"),
    one_in(38, _BUGS, slow=199),
    ids=lambda value: value.label() if isinstance(value, Problem) else value[:30],
)
def test_a_planted_bug_is_found_and_named(
    cpu: CpuBackend,
    variant_id: str,
    problem: Problem,
    old: str,
    new: str,
    code: str,
    tmp_path: Path,
) -> None:
    for file in (*KERNELS_DIR.glob("*.cuh"), by_id(variant_id).source):
        shutil.copy(file, tmp_path)
    header = _mutated(tmp_path, variant_id, problem)
    text = header.read_text("utf-8")
    assert old in text
    header.write_text(text.replace(old, new), "utf-8")
    found = _verdict(cpu, variant_id, problem, tmp_path)
    assert not found.passed
    codes = [finding.pattern for finding in found.findings]
    if code == "rows":  # rows past the end are written, or zero keys take part
        assert codes
    else:
        assert codes[0] == code, found.findings


def _verdict(
    cpu: CpuBackend,
    variant_id: str,
    problem: Problem,
    folder: Path | None,
    schedule: str = "in_order",
) -> Correctness:
    variant = by_id(variant_id)
    plan = make_plan(variant, problem, resolve_config(variant, {}, problem, None).values)
    if folder is not None:
        plan = dataclasses.replace(plan, source=folder / variant.source.name)
    inputs = make_inputs(problem)
    result = cpu.run(plan, inputs, RunOptions(schedule=schedule))
    assert result.out is not None, result.reason
    return check_output(inputs, result, plan=plan)


@pytest.mark.slow
@pytest.mark.parametrize("variant_id", one_in(99, TAKING, slow=99))
def test_unused_features_do_not_change_the_code(variant_id: str) -> None:
    """The machine code is the same without the features' macros and with their neutral values."""
    variant = by_id(variant_id)
    arch = "sm_90" if variant.arch_specific else "sm_80"
    none = {"WINDOW": "0", "SOFTCAP": "0.0f", "HAS_VARLEN": "0", "HAS_KV_OFFSET": "0"}
    none |= {"HAS_ALIBI": "0", "HAS_SINKS": "0"}
    for causal in (False, True):
        plan = make_plan(variant, Problem(1, 2, 128, 64, causal), variant.default_config())
        assert not set(dict(plan.defines)) & set(none)

        def code(defines: dict[str, str], plan=plan) -> str:
            given = tuple(sorted(defines.items()))
            made = compile_kernel(plan.source, given, target_arch(plan, arch), plan.entries)
            return read_cubin(made.cubin).code_sha256

        plain = dict(plan.defines)
        assert code(plain) == code(plain | none)
        assert code(plain) != code(plain | {"WINDOW": "33"})


def test_fp8_is_e4m3_rounded_to_nearest_even() -> None:
    """Every code, every midpoint between two, and values out of range match the definition."""
    codes = np.arange(256, dtype=np.uint8)
    finite = codes[(codes & 127) != 127]
    values = e4m3_values(finite)
    assert np.array_equal(e4m3_bytes(values), finite)
    positive = values[:127]
    assert (positive[1], positive[8], positive[126]) == (2.0**-9, 2.0**-6, 448.0)
    middles = (positive[:-1] + positive[1:]) / 2
    assert np.array_equal(e4m3_bytes(middles) % 2, np.zeros(126))
    assert e4m3_bytes(np.float32([1e9, -1e9])).tolist() == [0x7E, 0xFE]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_fp8_bytes_times_factors_are_the_reference_inputs(dtype: Dtype) -> None:
    """The bytes times the factors are exactly K and V, in half the size."""
    problem = dataclasses.replace(FP8, dtype=dtype)
    inputs = make_inputs(problem)
    assert inputs.kv_scales is not None
    assert len(set(inputs.kv_scales[0].tolist())) > 1
    for stored, raw, scales in zip(
        inputs.kv_stored, (inputs.k, inputs.v), inputs.kv_scales, strict=True
    ):
        assert stored.dtype == np.uint8
        values = e4m3_values(stored) * scales[:, None, None]
        assert np.array_equal(values, decoded(raw, dtype))
    plain = make_inputs(dataclasses.replace(problem, kv_dtype=None))
    before = inputs.without_fp8()
    assert np.array_equal(before.k, plain.k)
    assert np.array_equal(before.v, plain.v)
    assert 2 * problem.kv_bytes == plain.problem.kv_bytes
    found = expect(inputs)
    assert found.fp8_err is not None
    assert found.fp8_err > 4 * found.baseline_err
