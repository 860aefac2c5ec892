"""The CTA of a launch that executes most."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product

from engine.base.errors import InvalidProblem
from engine.compiled_plan import launch_of_pass
from engine.machine_code.cubin import Entry
from engine.machine_code.emulation import EXECUTED, Emulator
from engine.machine_code.instruction import Program
from engine.machine_code.timing.cta_times import Shorter
from engine.machine_code.trace import CtaTrace
from engine.plan import LaunchPlan, make_plan
from engine.problem import Problem
from kernels.variant import Config, Variant


def heaviest_cta(emulator: Emulator, has_middle: bool = False) -> CtaTrace:
    """Of the corners of the grid, and where `has_middle` of the CTAs between them: with a window to
    both sides those see most."""
    trace, totals = emulator.trace()
    # Along an axis that steers nothing every CTA executes the same.
    steered = zip(emulator.launch.grid, totals.control_axes, strict=True)
    places = [
        sorted({0, n - 1, n // 2 if has_middle else 0}) if steers else [0] for n, steers in steered
    ]

    def executed(cta: tuple[int, int, int]) -> int:
        here = emulator.totals(cta) if any(cta) else totals
        return int(here.values[:, EXECUTED].sum())

    ctas = [(x, y, z) for x, y, z in product(*places)]
    heaviest = max(ctas, key=executed)
    return emulator.trace(heaviest)[0] if any(heaviest) else trace


# Which short problems stand for a kernel's: CTAs of few lengths, and their traces.


# K/V rows of the CTAs. How many of them overlap on an SM settles after some tiles, and varies from
# tile to tile: long CTAs tell it better, as far as they are quick to simulate. Short ones take what
# their rings and pipelines need to fill.
ROWS = (32, 64, 128, 192, 256, 384, 512, 768, 1024, 2048)
_MOST_INSTRUCTIONS = 120_000  # of the longest CTA, unless it is one of the first three
# Of CTAs that show what a cut last tile adds: of those that share an SM it adds more or less from
# length to length. The longer ones only where they are quick to simulate; slow ones are short.
_CUT_ROWS = (256, 512)
_MOST_CUT_INSTRUCTIONS = 25_000
# On all CTAs beside each other that one sample of a cut query tile takes.
_MOST_SAMPLED = 700_000
_NEAR_ROWS = 1024  # of the longest CTAs beside which slightly shorter ones are simulated
_MOST_TURNS = 4  # of a CTA's warps, at whose first tile and last one its time is known


def plans_of(
    variant: Variant, problem: Problem, config: Config, rows: Sequence[int] = ROWS
) -> tuple[LaunchPlan, ...]:
    """Plans whose CTAs visit few K/V rows and more, ascending; the problem's own where the number
    of rows is fixed."""
    plans = {}
    with suppress(InvalidProblem):  # longer ones than the kernel takes
        for least in rows:
            plan = _plan(variant, problem, config, least)
            plans[variant.work.kv_rows(plan.problem, config)] = plan
    return tuple(plans.values()) if len(plans) > 1 else (make_plan(variant, problem, config),)


def _plan(variant: Variant, problem: Problem, config: Config, rows: int) -> LaunchPlan:
    """With CTAs of so many rows, or of as many as whole tiles have."""

    def short(rows: int) -> Problem:
        return problem.with_keys(rows * config.get("num_splits", 1))

    return make_plan(variant, short(variant.work.kv_rows(short(rows), config)), config)


def has_several_lengths(problem: Problem) -> bool:
    """Whether a launch's CTAs visit different numbers of keys, splits aside."""
    masked = problem.causal or problem.window is not None
    return masked or problem.seqlens is not None


def rows_in_turn(config: Config) -> tuple[int, ...]:
    """K/V rows of CTAs whose warps take tiles in turn: a turn's first tile takes about as long as
    all of it."""
    step = config.get("block_n", 1)
    turn = step * config.get("num_warps", 1)
    ends = [n * turn for n in range(1, _MOST_TURNS + 1)]
    rows = {step, 2 * step, *ends, *(end + step for end in ends)}
    return tuple(sorted(rows | {x for x in ROWS if x > max(rows)}))


def longest_ctas(
    program: Program, entry: Entry, variant: Variant, plan: LaunchPlan, has_even_splits: bool
) -> dict[float, CtaTrace]:
    """{K/V rows that it visits, ascending: a CTA's trace}, of that corner of the grid that executes
    most (a causal kernel's last tile)."""
    problem, config = plan.problem, plan.config
    traces: dict[float, CtaTrace] = {}
    plans = plans_of(variant, problem, config, rows_in_turn(config) if has_even_splits else ROWS)
    if has_even_splits:  # of fewer tiles than there are splits the first ones take none
        one_tile = make_plan(variant, problem.with_keys(config.get("block_n", 1)), config)
        traces[0.0] = Emulator(program, entry, launch_of_pass(one_tile, 0)).trace()[0]
    for short in plans:
        rows = float(variant.work.kv_rows(short.problem, config))
        if len(traces) > 2:
            before, trace = list(traces.items())[-1]
            if len(trace.instruction) * rows > _MOST_INSTRUCTIONS * before:
                break
        emulator = Emulator(program, entry, launch_of_pass(short, 0))
        traces[rows] = heaviest_cta(emulator, problem.window is not None and not problem.causal)
    return traces


def cut_ctas(
    program: Program, entry: Entry, variant: Variant, plan: LaunchPlan, lengths: Sequence[float]
) -> dict[int, dict[float, CtaTrace]]:
    """{keys that its last tile lacks, ascending: {K/V rows: trace}} of CTAs of some of the lengths.

    Their query tiles are whole. One key is lacking, or all but one: absent rows are not loaded.
    Empty where tiles are never cut or CTAs are of several lengths: causal ones, splits of keys.
    """
    problem, config = plan.problem, plan.config
    if has_several_lengths(problem) or config.get("num_splits", 1) > 1 or len(lengths) == 1:
        return {}
    step = config.get("block_n", 1)
    of_some = [int(x) for x in lengths if x in _CUT_ROWS] or [int(lengths[1])]
    found: dict[int, dict[float, CtaTrace]] = {}
    for absent, rows in product(sorted({1, step - 1} - {0}), of_some):
        keys = rows - absent
        cut = problem.with_keys(keys)
        if keys <= 0 or variant.work.kv_rows(cut, config) != rows:
            continue
        with suppress(InvalidProblem):  # it takes whole tiles only
            launch = launch_of_pass(make_plan(variant, cut, config), 0)
            trace = Emulator(program, entry, launch).trace()[0]
            of_rows = found.setdefault(absent, {})
            if not of_rows or len(trace.instruction) <= _MOST_CUT_INSTRUCTIONS:
                of_rows[float(rows)] = trace
    return found


def cut_query_tiles(
    program: Program,
    entry: Entry,
    variant: Variant,
    plan: LaunchPlan,
    lengths: Sequence[float],
    resident: int,
) -> dict[int, tuple[CtaTrace, CtaTrace]]:
    """{rows of the cut one: CTAs of a whole query tile and of a cut one of the same launch}.

    Those have one row, half of them and seven eighths. Empty where an SM holds one CTA only, or
    where CTAs are of several lengths: causal ones, splits of keys.
    """
    problem, config = plan.problem, plan.config
    tile = variant.work.query_rows(problem, config)
    few = has_several_lengths(problem) or config.get("num_splits", 1) > 1 or len(lengths) == 1
    if few or resident == 1 or tile == 1:
        return {}
    found: dict[int, tuple[CtaTrace, CtaTrace]] = {}
    wanted = sorted({1, tile // 2, tile - tile // 8} - {tile})
    for rows in sorted((int(x) for x in lengths if x <= _CUT_ROWS[-1]), reverse=True):
        left = wanted[len(found)]
        if problem.seqlen_kv is None:
            short = replace(problem, batch=1, seqlen=max(rows, 2 * tile) - tile + left)
        else:
            short = replace(problem, batch=1, seqlen=tile + left, seqlen_kv=rows)
        with suppress(InvalidProblem):  # it takes whole tiles only
            launch = launch_of_pass(make_plan(variant, short, config), 0)
            emulator = Emulator(program, entry, launch)
            whole = emulator.trace()[0]
            queues = 2 * resident * (1 + min(4, resident))
            if len(whole.instruction) * queues > _MOST_SAMPLED:
                continue
            found[left] = whole, emulator.trace((launch.grid[0] - 1, 0, 0))[0]
        if len(found) == len(wanted):
            break
    return found


def shorter_ctas(
    program: Program, entry: Entry, variant: Variant, plan: LaunchPlan, lengths: Sequence[float]
) -> dict[float, Shorter]:
    """{K/V rows: of the first one of even splits of which one is a K/V tile shorter, its rows and
    trace}, for some of those lengths."""
    problem, config = plan.problem, plan.config
    step = config.get("block_n", 1)
    traces: dict[float, Shorter] = {}
    for rows in lengths:
        if not 0 < rows <= _NEAR_ROWS:
            continue
        short = problem.with_keys(int(rows) * config["num_splits"] - step)
        with suppress(InvalidProblem):  # it takes whole tiles only
            launch = launch_of_pass(make_plan(variant, short, config), 0)
            _, y, z = launch.grid  # the last query tile: with a causal mask it sees all keys
            last = z - 1 if problem.seqlens is None else 0  # the longest sequence is the first
            trace = Emulator(program, entry, launch).trace((0, y - 1, last))[0]
            traces[rows] = (rows - step, trace)
    return traces


def has_even_splits(program: Program, entry: Entry, variant: Variant, plan: LaunchPlan) -> bool:
    """Whether splits of K/V differ by a tile at most; else all but the last ones are equally long.

    One tile more than there are splits leaves the last CTA of those with none.
    """
    splits = plan.config.get("num_splits", 1)
    if splits == 1:
        return False
    keys = (splits + 1) * plan.config.get("block_n", 1)
    short = replace(plan.problem.with_keys(keys), causal=False)
    emulator = Emulator(program, entry, launch_of_pass(make_plan(variant, short, plan.config), 0))
    x, y, z = emulator.launch.grid
    executed = [
        int(emulator.totals(cta).values[:, EXECUTED].sum())
        for cta in ((0, 0, 0), (x - 1, y - 1, z - 1))
    ]
    return 2 * executed[1] > executed[0]
