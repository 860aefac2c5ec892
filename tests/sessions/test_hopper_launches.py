"""Snapshots store what a Hopper launch needs: tensor maps, clusters, register counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sessions_data import evaluation_maker, snapshot_maker

from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.base.launch_arguments import TensorMapArg, encode_argument
from engine.sessions.rerun import their_source
from engine.sessions.session import make_source
from engine.sessions.snapshot import dumps, loads
from kernels.description import parse_variant
from kernels.ladder import LADDER
from kernels.variant import KERNELS_DIR, Variant
from tests.fitting import fitting_config

HOPPER = [v for v in LADDER if v.arch_specific]


@pytest.mark.parametrize("variant", HOPPER, ids=lambda v: v.id)
def test_the_launch_of_a_loaded_snapshot_is_equal(variant: Variant, tmp_path: Path) -> None:
    problem = Problem(2, 4, 203, 96, causal=True, num_heads_kv=2)
    config = fitting_config(variant, problem)
    text = variant.source.read_text(encoding="utf-8")
    cluster = (1, 2, 1) if variant.id == "v16" else (1, 1, 1)  # v16 clusters two heads
    if "\ncluster = [" not in text:  # v19's description has one already
        text = text.replace("[[passes]]\n", f"[[passes]]\ncluster = {list(cluster)}\n", 1)
    plan = make_plan(parse_variant(text, variant.source), problem, config)
    source = make_source(variant.source.name, text, ("-DHEAD_DIM=96",))
    evaluation = evaluation_maker(
        variant=variant.id,
        problem=problem,
        config=config,
        source_sha256=source.sha256,
    )
    made = snapshot_maker(evaluations=(evaluation,), sources=(source,))
    loaded = loads(dumps(made), name="test data")
    assert loaded == made
    path = their_source(loaded, loaded.opened()[0], tmp_path)
    read = parse_variant(path.read_text(encoding="utf-8"), path)
    again = make_plan(read, problem, config)
    # A copy outside the ladder's folder finds the ladder's headers by an include folder.
    assert again == replace(plan, source=path, include_folders=(KERNELS_DIR,))
    (launch,) = again.passes
    maps = [a for a in launch.args if isinstance(a, TensorMapArg)]
    assert launch.cluster == cluster
    assert len(maps) >= 3
    assert [encode_argument(m) for m in maps] == [
        encode_argument(a) for a in plan.passes[0].args if isinstance(a, TensorMapArg)
    ]
    assert bool(launch.warpgroup_registers) == ("warpgroup_registers" in text)
