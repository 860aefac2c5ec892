"""The shipped tables of `auto`: every row names a kernel that runs and does not spill."""

from __future__ import annotations

import pytest

from engine.attention.config import find_variant
from engine.attention.plan import make_plan, resources
from engine.attention.problem import Direction, Problem
from engine.choose.auto.candidates import changed_since, eligible, read_table
from engine.choose.auto.renew import GPUS, _Candidate, _row, directions
from engine.devices import find_device
from engine.model.kernel import compile_plan
from kernels.ladder import LADDER

TABLES = [(capability, direction) for capability in GPUS for direction in directions(capability)]


@pytest.mark.parametrize(("capability", "direction"), TABLES, ids=str)
def test_the_tables_that_ship_name_kernels_that_run(
    capability: tuple[int, int], direction: Direction
) -> None:
    table = read_table(capability, direction)
    assert table is not None
    assert set(table.sources) == {v.id for v in eligible(direction)}
    device = find_device(GPUS[capability])
    assert table.gpu == device.name
    for each in table.rows:
        variant = LADDER.by_id(each.variant)
        assert variant.min_compute_capability <= capability
        heads_kv = min(each.heads, 32) // each.group
        problem = Problem(
            max(1, each.heads // 32) if each.seqlen == 1 else 1,
            min(each.heads, 32) if each.seqlen == 1 else each.heads,
            each.seqlen,
            each.head_dim,
            causal=each.causal,
            seqlen_kv=each.keys,
            num_heads_kv=heads_kv if each.seqlen == 1 else None,
            direction=direction,
        )
        assert variant.unsupported(problem, variant.default_config() | dict(each.config)) is None
        assert each.us > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize(("capability", "direction"), TABLES, ids=str)
def test_no_config_of_the_tables_spills(capability: tuple[int, int], direction: Direction) -> None:
    """Checks the kernels whose source is unchanged since they were ranked."""
    table, device = read_table(capability, direction), find_device(GPUS[capability])
    assert table is not None
    changed, seen = changed_since(table, eligible(direction)), set()
    for each in table.rows:
        variant = LADDER.by_id(each.variant)
        config = variant.default_config() | dict(each.config)
        problem = Problem(
            *(1, each.group, each.seqlen, each.head_dim),
            causal=each.causal,
            seqlen_kv=each.keys if each.seqlen == 1 else None,
            num_heads_kv=1,
            direction=direction,
        )
        key = (variant.id, variant.defines(problem, config))
        if key in seen or variant.id in changed:
            continue
        seen.add(key)
        plan = make_plan(variant, problem, config)
        used = resources(plan, compile_plan(plan, device.arch))
        assert not any(r.uses_local_memory for r in used), (each.label(), config)


@pytest.mark.parametrize(("slower", "pick"), [(1.02, "v08"), (1.04, "v11"), (1.09, "v11")])
def test_no_row_is_over_3_percent_slower_than_the_best_candidate(slower: float, pick: str) -> None:
    lower, higher = (
        _Candidate(variant, variant.default_config(), is_default=True)
        for variant in map(find_variant, ("v08", "v11"))
    )
    made = _row(Problem(1, 8, 512, 64), [(lower, 10.0 * slower), (higher, 10.0)])
    assert made.variant == pick
    assert made.us <= 1.03 * made.beside_us
