"""Choose the best configs of a sweep and save them as tuned configs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from engine.config import TunedConfig, keep_tuned, problem_class
from engine.search.autotune import ProblemResult
from engine.search.ranking import SweepRow, by_problem, gpu_names
from engine.search.strategies import StrategyName


def configs_to_keep(
    results: Sequence[ProblemResult], rows: Sequence[SweepRow], strategy: StrategyName
) -> list[TunedConfig]:
    """The best config of every (GPU, variant, problem class), slow variants too.

    Where a sweep has several problems of a class, the config that is best over all of them is
    taken (the geometric mean of its times), as far as any has a time on each; the entry then names
    the largest of them.
    """
    by_class: dict[tuple[str, str, str], list[tuple[TunedConfig, ProblemResult]]] = {}
    variants = sorted({row.variant for row in rows})
    groups = by_problem(rows)
    # The largest problem last, so that it is the one named.
    for result in sorted(results, key=lambda r: r.problem.flops):
        group = groups[result.device, result.problem]
        for variant in variants:
            entry = tuned_config(result, group, strategy, variant)
            if entry is not None:
                tried = sum(row.variant == variant for row in group)
                key = (entry.gpu, entry.variant, entry.problem_class)
                by_class.setdefault(key, []).append((replace(entry, evaluations=tried), result))
    by_point = {row.point: row for row in rows}
    return [_best_of_class(entries, by_point) for _, entries in sorted(by_class.items())]


def tuned_config(
    result: ProblemResult, rows: Sequence[SweepRow], strategy: StrategyName, variant: str
) -> TunedConfig | None:
    """The best config of one variant, None when no point of it has a place.

    Of tied configs the one that ranks first is taken.
    """
    by_point = {row.point: row for row in rows}
    name_of = gpu_names(rows)
    for place in result.places:
        row = by_point[place.point]
        if row.variant != variant:
            continue
        same = (result.device, result.problem, variant)
        tried = sum((name_of(r), r.problem, r.variant) == same for r in rows)
        return TunedConfig(
            gpu=row.device,
            variant=variant,
            problem_class=problem_class(result.problem),
            config=dict(row.config),
            problem=result.problem.label(),
            median_us=place.interval.median,
            origin=result.origin,
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            strategy=strategy,
            evaluations=tried,
        )
    return None


def _best_of_class(
    entries: Sequence[tuple[TunedConfig, ProblemResult]], by_point: dict[str, SweepRow]
) -> TunedConfig:
    entry, largest = entries[-1]
    if len(entries) == 1:
        return entry
    times: dict[tuple[tuple[str, int], ...], list[float]] = {}
    on_largest = {}
    for _, result in entries:
        for place in result.places:
            row = by_point[place.point]
            if row.variant == entry.variant and result.origin == entry.origin:
                config = tuple(row.config.items())
                times.setdefault(config, []).append(math.log(place.interval.median))
                if result is largest:
                    on_largest[config] = place.interval.median
    everywhere = {c: sum(logs) for c, logs in times.items() if len(logs) == len(entries)}
    if not everywhere:
        return entry
    best = min(everywhere, key=lambda config: everywhere[config])
    return replace(entry, config=dict(best), median_us=on_largest[best])


def keep_configs(entries: Iterable[TunedConfig]) -> list[str]:
    """Save entries; one sentence for each says what happened.

    Raises:
        StoreError: the file of tuned configs cannot be read or written.
    """
    sentences = []
    for entry in entries:
        key = f"{entry.variant} on {entry.gpu}, {entry.problem_class}"
        if keep_tuned(entry):
            sentences.append(f"Kept for {key}: {entry.values()} ({entry.origin}).")
        else:
            sentences.append(
                f"Not kept for {key}: what is kept was measured, this is {entry.origin}."
            )
    return sentences
