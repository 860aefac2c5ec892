"""Options if the batch cannot grow: other variants, a smaller GPU, waiting, or accepting it.

Every option has the same two figures, latency and dollars per 10⁹ queries, and options are ranked
by the cost of a query, as `auto` ranks (`rank_of`), by the time that `History.time_of` prefers: a
measured or recorded one comes before a prediction. They include `auto`'s candidates, in `auto`'s
order if only the kernel differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from engine.attention.config import fitting_config
from engine.attention.evaluation import METHODS, Latency, Origin
from engine.attention.problem import Problem
from engine.base.errors import AttuneError, InvalidProblem
from engine.base.units import format_us
from engine.choose.auto import candidates_for, rank_of
from engine.choose.batch.cost import WaitPlan, usd_per_billion_queries
from engine.devices.spec import DeviceSpec
from engine.history import History
from engine.history.known_time import are_comparable, not_comparable
from engine.model.equations import Calibration, prior_covariance
from engine.model.kernel import Kernel
from kernels.variant import Variant

OptionKind: TypeAlias = Literal["variant", "gpu", "wait", "accept"]
Rank: TypeAlias = tuple[bool, bool, tuple[bool, float, str]]

# Tunables that trade work per CTA for more CTAs, which helps small batches.
_SPREADING_TUNABLES = ("num_splits", "block_m")


@dataclass(frozen=True, slots=True)
class Option:
    """One option, with its figures."""

    kind: OptionKind
    title: str
    variant: str
    config: dict[str, int]
    device: str
    batch: int
    # Latency of a request at the 95th percentile when waiting, else that of the launch.
    latency_us: float
    low_us: float
    high_us: float
    per_query_us: float
    usd_per_billion_queries: float | None
    # Speed-up of a query's GPU time over accepting; None if the two are not comparable: predicted
    # by different methods, or only one of them predicted, or calibrated.
    speedup: float | None
    reason: str
    by_machine_code: bool  # the latency is simulated
    basis: str  # of the latency: `recorded`, `predicted by machine code, calibrated`
    origin: Origin


@dataclass(frozen=True, slots=True)
class Situation:
    """The present kernel, at the batch that cannot grow."""

    kernel: Kernel
    problem: Problem
    price_usd_per_hour: float | None
    # On the caller's points, which then predict all options; None: the history's times count.
    calibration: Calibration | None = None
    # The calibration belongs to another kernel with the same launch; the result is for that kernel,
    # here and on other GPUs.
    is_own_file: bool = True


def rank_options(
    now: Situation,
    variants: Iterable[Variant],
    devices: Iterable[DeviceSpec],
    wait: WaitPlan | None,
    known: History,
) -> tuple[tuple[Option, ...], tuple[str, ...]]:
    """Return the options, cheapest query first, and why some could not be predicted.

    Args:
        variants: to consider on the same GPU, with configs that spread work over more CTAs and
            configs of `auto`'s candidates.
        devices: to consider with the same variant; only cheaper ones (smaller ones without a price)
            are offered.
        wait: a plan to collect requests, if requested.
        known: gives the options' times. Options by roofline come last, as assumed times cannot rank
            kernels; with the caller's calibration, options by another method than the present
            kernel's. Options whose times are not comparable with the present kernel's have no
            speed-up.

    Raises:
        InvalidProblem: the present kernel cannot be predicted.
    """
    devices = tuple(devices)
    accepted = _option("accept", now, "Accept it", None, known)
    if isinstance(accepted, str):
        raise InvalidProblem(accepted)
    base = accepted
    options = [replace(base, reason=f"{base.reason} Nothing changes.")]
    notes: list[str] = []
    others = [*_other_kernels(now, variants, known), *_other_devices(now, devices)]
    # Threads help, because compiling releases the interpreter lock.
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda x: _option(x[0], x[1], x[2], base, known), others))
    notes += _not_comparable(base, [a for a in answers if not isinstance(a, str)])
    for (_, _, title), answer in zip(others, answers, strict=True):
        if isinstance(answer, str):
            notes.append(f"{title}: {answer}")
        else:
            options.append(answer)
    if wait is not None and wait.batch > now.problem.batch:
        larger = replace(now, problem=replace(now.problem, batch=wait.batch))
        later = _option("wait", larger, f"Wait to collect {wait.batch:,} requests", base, known)
        if not isinstance(later, str):
            options.append(_waiting(wait, base, later))

    def rank(option: Option) -> Rank:
        """Sort key: cheapest query first, then options without a price or that cannot be ranked."""
        dollars = option.usd_per_billion_queries
        cost = option.per_query_us if dollars is None else dollars
        method = base.by_machine_code if now.calibration is not None else True
        is_other = option.origin == "predicted" and option.by_machine_code != method
        return is_other, dollars is None, rank_of(cost, option.variant)

    ranked = _best_configs(sorted(options, key=rank))
    if basis := _different_bases(ranked, {d.name: d for d in (now.kernel.device, *devices)}):
        notes.append(basis)
    return tuple(ranked), tuple(dict.fromkeys(notes))


def _not_comparable(base: Option, options: Iterable[Option]) -> Iterator[str]:
    """Yield a sentence for each reason why options have no speed-up, with their variants."""
    names: dict[str, dict[str, None]] = {}
    for option in options:
        if option.speedup is None:
            names.setdefault(not_comparable(base.basis, option.basis), {})[option.variant] = None
    for why, variants in names.items():
        yield f"Speed-up of {', '.join(variants)} over the present kernel: {why}."


def _different_bases(options: Iterable[Option], devices: Mapping[str, DeviceSpec]) -> str:
    """Return a sentence on the offers behind the prices if these differ; else empty."""
    bases = {
        o.device: devices[o.device].price_basis
        for o in options
        if o.usd_per_billion_queries is not None
    }
    if len(set(bases.values())) < 2:
        return ""
    listing = "; ".join(f"{name}: {basis}" for name, basis in bases.items())
    return (
        f"These prices are for different offers ({listing}): give your own before comparing them."
    )


def _best_configs(ranked: Iterable[Option]) -> list[Option]:
    """Return the options with only the best config of each variant on each GPU."""
    best: dict[tuple[str, str, str], Option] = {}
    for option in ranked:
        best.setdefault((option.kind, option.variant, option.device), option)
    return list(best.values())


def _other_kernels(
    now: Situation, variants: Iterable[Variant], known: History
) -> Iterator[tuple[OptionKind, Situation, str]]:
    # Paged K and V are given by the problem, so all options keep them.
    paged = now.kernel.variant.page_rows is not None
    device = now.kernel.device
    considered = {v.id: v for v in variants if (v.page_rows is not None) == paged}
    kernels = [k for v in considered.values() for k in _spread(v, now.problem, device)]
    kernels += [k for k in candidates_for(now.problem, device, known) if k.variant.id in considered]
    for kernel in dict.fromkeys(kernels):
        variant = kernel.variant
        if kernel == now.kernel or kernel.unsupported(now.problem) is not None:
            continue
        calibration = None
        if variant.id == now.kernel.variant.id and not now.is_own_file:
            calibration = _transferred_calibration(now.calibration, variant)
        other = replace(now, kernel=kernel, calibration=calibration)
        default = fitting_config(variant, {}, now.problem, device)
        shown = ", ".join(
            f"{k}={v}"
            for k, v in kernel.config.items()
            if k in _SPREADING_TUNABLES or v != default[k]
        )
        yield "variant", other, f"Use {variant.id} {variant.title}{f' ({shown})' * bool(shown)}"


def _spread(variant: Variant, problem: Problem, device: DeviceSpec) -> Iterator[Kernel]:
    """Return the variant in the config that is used if nobody gives one, and with other values of
    the tunables that change the number of CTAs."""
    usual = Kernel.of(variant, device, fitting_config(variant, {}, problem, device))
    yield usual
    for tunable in variant.tunables:
        if tunable.name in _SPREADING_TUNABLES:
            for value in tunable.values:
                if value != usual.config[tunable.name]:
                    yield usual.with_config(**{tunable.name: value})


def _other_devices(
    now: Situation, devices: Iterable[DeviceSpec]
) -> Iterator[tuple[OptionKind, Situation, str]]:
    for device in devices:
        if device.name == now.kernel.device.name or not _smaller(device, now):
            continue
        kernel = _on_gpu(now.kernel, now.problem, device)
        if not kernel.fits(now.problem):
            continue
        other = replace(
            now,
            kernel=kernel,
            price_usd_per_hour=device.price_usd_per_hour,
            calibration=None
            if now.is_own_file
            else _transferred_calibration(now.calibration, kernel.variant),
        )
        yield "gpu", other, f"Use {_article(device.name)} {device.name}"


def _smaller(device: DeviceSpec, now: Situation) -> bool:
    if device.price_usd_per_hour is not None and now.price_usd_per_hour is not None:
        return device.price_usd_per_hour < now.price_usd_per_hour
    return (device.num_sms or 0) < (now.kernel.device.num_sms or 0)


def _on_gpu(kernel: Kernel, problem: Problem, device: DeviceSpec) -> Kernel:
    """Return the same kernel on another GPU, with that GPU's defaults."""
    variant = kernel.variant
    usual = fitting_config(variant, {}, problem, kernel.device)
    given = {name: value for name, value in kernel.values if value != usual[name]}
    return Kernel.of(variant, device, fitting_config(variant, given, problem, device))


def _article(name: str) -> str:
    """`a` or `an`, as a GPU's name is spoken: an L4, an RTX 4090, a T4."""
    return "an" if name[0] in "AEFHILMNORSX" else "a"


def _transferred_calibration(
    calibration: Calibration | None, variant: Variant
) -> Calibration | None:
    """Transfer a calibration to another GPU or config: its medians, with a prior's uncertainty."""
    if calibration is None:
        return None
    covariance = tuple(tuple(row) for row in prior_covariance(variant).tolist())
    return replace(calibration, covariance=covariance)


def _option(
    kind: OptionKind,
    at: Situation,
    title: str,
    base: Option | None,
    known: History,
) -> Option | str:
    """Return the option's figures, or one sentence why there are none."""
    try:
        latency, reason = _latency(at, known)
        needed_bytes = at.kernel.plan(at.problem).device_bytes
    except AttuneError as error:
        return str(error)
    device = at.kernel.device
    if device.memory_bytes is not None and needed_bytes > device.memory_bytes:
        return f"The problem does not fit in {device.name}'s memory."
    per_query_us = latency.median_us / _queries(at.problem)
    speedup: float | None = 1.0
    if base is not None:
        comparable = are_comparable(base.basis, latency.basis)
        speedup = base.per_query_us / per_query_us if comparable else None
    return Option(
        kind=kind,
        title=title,
        variant=at.kernel.variant.id,
        config=at.kernel.config,
        device=device.name,
        batch=at.problem.batch,
        latency_us=latency.median_us,
        low_us=latency.low_us,
        high_us=latency.high_us,
        per_query_us=per_query_us,
        usd_per_billion_queries=_dollars(per_query_us, at.price_usd_per_hour),
        speedup=speedup,
        reason=reason,
        by_machine_code=latency.method == METHODS[0],
        basis=latency.basis,
        origin=latency.origin,
    )


def _latency(at: Situation, known: History) -> tuple[Latency, str]:
    """Return the time and a sentence on it. Raises AttuneError if there is none."""
    time = known.time_of(at.kernel, at.problem) if at.calibration is None else None
    if time is not None and time.where:
        return time.latency, f"{time.origin.capitalize()}: {time.where}."
    latency = None if time is None else time.latency
    if latency is None:
        made = known.estimate(at.kernel, at.problem, at.calibration)
        latency = made.latency
        if latency is None:
            raise InvalidProblem(made.reason)
    return latency, latency.reason.split(". ")[0].rstrip(".") + "."


def _waiting(wait: WaitPlan, base: Option, later: Option) -> Option:
    """Return the option to launch `later` in place of `base` after waiting."""
    total_us = base.latency_us + wait.added_p95_us
    spread = np.array([base.low_us, base.high_us]) / base.latency_us
    return replace(
        later,
        latency_us=total_us,
        low_us=float(wait.added_p95_us + spread[0] * base.latency_us),
        high_us=float(wait.added_p95_us + spread[1] * base.latency_us),
        reason=f"{wait.reason} The launch takes {format_us(later.latency_us)}.",
    )


def _queries(problem: Problem) -> int:
    return problem.batch * problem.num_heads * problem.seqlen


def _dollars(per_query_us: float, price_usd_per_hour: float | None) -> float | None:
    if price_usd_per_hour is None:
        return None
    return usd_per_billion_queries(per_query_us, price_usd_per_hour)
