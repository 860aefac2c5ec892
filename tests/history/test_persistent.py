"""Persistent kernels: the tiles of each CTA, and launch times predicted from the costs of tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from slow_cases import slow_ones

from engine.attention.config import find_variant
from engine.attention.plan import LaunchPlan, make_plan
from engine.attention.problem import Problem
from engine.cuda_source import CompiledKernel
from engine.devices import find_device
from engine.history import History
from engine.history.ctas import known_ctas
from engine.history.persistent import (
    PersistentCtas,
    features_of,
    pieces_of,
    simulate_persistent,
)
from engine.machine_code.analysis import program_of
from engine.machine_code.cubin import read_cubin
from engine.machine_code.disassembly import find_entry
from engine.machine_code.emulation import EXECUTED, CtaTrace, Emulator
from engine.machine_code.timing.constants import SmTiming
from engine.machine_code.timing.native import Kernel as SmKernel
from engine.machine_code.timing.native import allocated_smem, gpu_rates, simulate_sm, sm_kernel
from engine.model.kernel import Kernel, compile_plan, launch_of_pass
from kernels.ladder import LADDER

PROBLEM = Problem(batch=2, num_heads=15, seqlen=1000, head_dim=64)
CAUSAL = replace(PROBLEM, causal=True)


@pytest.mark.parametrize("problem", [PROBLEM, CAUSAL], ids=["full", "causal"])
@pytest.mark.parametrize("name", [v.id for v in LADDER if "num_ctas" in v.default_config()])
def test_every_key_tile_is_visited_once(name: str, problem: Problem) -> None:
    kernel = Kernel.of(name, "H200")
    config = kernel.config
    rows, keys = kernel.variant.work.query_rows(problem, config), config["block_n"]
    pieces = pieces_of(kernel, problem, 100)
    ends = [min(end, 1000) if problem.causal else 1000 for end in range(rows, 1000 + rows, rows)]
    of_head = [-(-end // keys) for end in ends]
    assert pieces.tiles.sum() == 30 * sum(of_head)
    of_ctas = np.bincount(pieces.cta, pieces.tiles)
    assert len(of_ctas) == 100
    if name == "v13":
        # A query tile costs as much as some additional key tiles, which one or two CTAs take.
        start = 4 if problem.causal else 2
        assert np.ptp(of_ctas + start * np.bincount(pieces.cta)) <= start + 1
        assert pieces.is_cut.sum() > 90
    else:
        assert not pieces.is_cut.any()
        assert sorted(pieces.tiles) == sorted(30 * of_head)
    # The last key tile is partial; with a causal mask, each one past the first query.
    whole = [min(1000, first + 1) // keys for first in range(0, 1000, rows)]
    masked = sum(of_head) - sum(whole) if problem.causal else len(ends)
    assert pieces.masked.sum() == 30 * masked


def test_the_longest_pieces_are_scheduled_first() -> None:
    """v19, two heads at a time: in each of four heads query tiles with 1, 2, 3 and 4 key tiles."""
    kernel = Kernel.of("v19", "H200", {"kv_mib": 1})
    config = kernel.config
    problem = Problem(batch=1, num_heads=4, seqlen=512, head_dim=64, causal=True)
    at_once = kernel.variant.work.schedule
    assert at_once is not None
    assert at_once.heads_at_once is not None
    assert at_once.heads_at_once(problem, config) >= 4
    pieces = pieces_of(kernel, problem, 4)
    # Rounds of four CTAs, every second one in reverse.
    assert pieces.tiles.reshape(4, 4).tolist() == [[4, 3, 2, 1]] * 4
    long = replace(problem, seqlen=8192)
    assert at_once.heads_at_once(long, config) == 1
    first = pieces_of(kernel, long, 1).tiles
    # Sections of one head: descending lengths in the last, ascending in the one before.
    assert first.tolist() == [*range(1, 65), *range(64, 0, -1)] * 2


def test_ctas_of_a_cluster_visit_the_tiles_of_any_of_them() -> None:
    """v19 with clusters of two: five query tiles of a head are three pairs, the last half empty."""
    kernel = Kernel.of("v19", "H200", {"cluster_size": 2})
    problem = Problem(batch=1, num_heads=2, seqlen=640, head_dim=64, causal=True)
    pieces = pieces_of(kernel, problem, 4)
    assert pieces.cta.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert pieces.tiles.reshape(4, 3).tolist() == [[5, 4, 2], [5, 4, 2]] * 2
    single = pieces_of(kernel.with_config(cluster_size=1), problem, 4)
    assert sorted(single.tiles) == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def compiled_for(
    name: str, problem: Problem, gpu: str, **chosen: int
) -> tuple[LaunchPlan, CompiledKernel]:
    pytest.importorskip("cupy")
    variant = find_variant(name)
    plan = make_plan(variant, problem, variant.default_config() | chosen)
    return plan, compile_plan(plan, find_device(gpu).arch)


def emulator_of(plan: LaunchPlan, compiled: CompiledKernel) -> Emulator:
    cubin = read_cubin(compiled.cubin)
    name = plan.passes[0].entry
    entry = find_entry(cubin, compiled.symbols.get(name, name))
    return Emulator(program_of(cubin, entry.name), entry, launch_of_pass(plan, 0))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "gpu", "mma"), [("v13", "A100 80GB SXM", "HMMA"), ("v19", "H200", "HGMMA")]
)
def test_ctas_execute_the_products_of_the_pieces_that_they_take(
    name: str, gpu: str, mma: str
) -> None:
    problem = replace(CAUSAL, batch=1, num_heads=5, seqlen=600)
    plan, compiled = compiled_for(name, problem, gpu, num_ctas=4)
    emulator = emulator_of(plan, compiled)
    pieces = pieces_of(Kernel.of(name, gpu, plan.config), problem, 4)
    is_product = np.array([i.opcode.startswith(mma) for i in emulator.program.instructions])
    products = [emulator.totals((cta, 0, 0)).values[is_product, EXECUTED].sum() for cta in range(4)]
    tiles = np.bincount(pieces.cta, pieces.tiles)
    assert len({p / t for p, t in zip(products, tiles, strict=True)}) == 1


def errors(name: str, gpu: str, problems: Sequence[Problem], **chosen: int) -> list[float]:
    """Return errors of the prediction relative to the simulation of every CTA."""
    variant, device = find_variant(name), find_device(gpu)
    found = []
    for problem in problems:
        plan, compiled = compiled_for(name, problem, gpu, **chosen)
        kernel = Kernel.of(variant, device, plan.config)
        predicted = History().estimate_plan(kernel, plan, compiled)
        resident = predicted.passes[0].occupancy.ctas_per_sm
        known = known_ctas(kernel, plan, compiled, resident)
        if known is None:
            pytest.skip("no nvdisasm or no C++ compiler")
        assert isinstance(known, PersistentCtas)
        assert predicted.terms is not None
        emulator, gpu_row = emulator_of(plan, compiled), gpu_rates(device)
        smem_bytes = emulator.program.static_smem_bytes + plan.passes[0].dynamic_smem_bytes
        taken = resident * allocated_smem(device, smem_bytes)
        kernel = sm_kernel(emulator.program, gpu_row, "shared", taken, fetches_code=False)
        ctas = range(plan.passes[0].ctas)
        traces = [emulator.trace((cta, 0, 0))[0] for cta in ctas]
        whole = simulate_sm(kernel, traces, list(ctas), resident, gpu_row.num_sms)
        cycles = predicted.terms.compute_us[0] * gpu_row.cycles_per_us - known.fetch_cycles
        found.append(float(cycles / whole.cycles - 1))
    return found


@pytest.mark.parametrize(("name", "causal"), slow_ones(2, [("v19", True), ("v20", False)]))
def test_a_long_cta_takes_the_sum_of_its_pieces(name: str, causal: bool) -> None:
    """Within 4 %, although its tiles are longer than the simulated ones."""
    problem, gpu = Problem(4, 32, 4096, 64, causal), find_device("H100 SXM")
    plan, compiled = compiled_for(name, problem, gpu.name, num_ctas=132)
    emulator, kernel = emulator_of(plan, compiled), Kernel.of(name, gpu, plan.config)
    program = emulator.program
    entry = read_cubin(compiled.cubin).entries[program.entry]
    ctas = simulate_persistent(program, entry, kernel, plan, 1, ("shared",))["shared"]
    pieces = pieces_of(kernel, problem, 132)
    costs = features_of(pieces, plan.config)[pieces.cta == 66].sum(axis=0) @ ctas.costs[0]
    taken = allocated_smem(gpu, program.static_smem_bytes + plan.passes[0].dynamic_smem_bytes)
    sm = sm_kernel(program, gpu_rates(gpu), "shared", taken, fetches_code=False)
    trace = emulator.trace((66, 0, 0))[0]
    followed = simulate_sm(sm, [trace], [0], 1, stalls=False).cycles
    assert costs == pytest.approx(followed, rel=0.04)


def test_no_ctas_are_simulated_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first CTA's end and the cost of loading code come from the simulation of CTAs in step."""
    plan, compiled = compiled_for("v13", PROBLEM, "A100 80GB SXM", num_ctas=216)
    emulator, gpu = emulator_of(plan, compiled), find_device("A100 80GB SXM")
    entry = read_cubin(compiled.cubin).entries[emulator.program.entry]
    simulated: list[tuple[bytes, ...]] = []

    def counted(
        kernel: SmKernel, traces: Sequence[CtaTrace], queue: Sequence[int], *_: int, **__: bool
    ) -> SmTiming:
        """Replace the simulation, which would take most of a second."""
        executed = [trace.instruction for trace in traces]
        held = [executed[n].tobytes() for n in queue]
        simulated.append((bytes(kernel.machine), *held))
        ends = np.array([float(len(executed[n])) for n in queue])
        return SmTiming(ends.sum(), 0, 0 * ends, ends, {}, np.zeros((0, 0)))

    monkeypatch.setattr("engine.history.persistent.simulate_sm", counted)
    ctas = simulate_persistent(
        *(emulator.program, entry, Kernel.of("v13", gpu, plan.config), plan, 2, ("shared",))
    )
    assert ctas["shared"].counts == (1, 2)
    assert len(simulated) > 40
    assert len(simulated) == len(set(simulated))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "problem",
    [
        Problem(batch=1, num_heads=30, seqlen=700, head_dim=64, causal=True),
        pytest.param(Problem(1, 150, 256, 64), marks=pytest.mark.exhaustive),
    ],
)
def test_a_predicted_launch_is_the_simulated_one(problem: Problem) -> None:
    """Within 2 % of the simulation of the same query tiles one after the other."""
    assert np.abs(errors("v19", "H200", [problem])).max() < 0.02
