"""Added latency and gain of collecting requests into batches; cost of queries.

Requests arrive at random (Poisson) and are launched together once there are B of them. The k-th
request of a batch waits for B − k further arrivals; over all positions, the probability to wait
longer than t is E[max(0, B − 1 − N)] / B with N ~ Poisson(rate · t). Waiting for a GPU that is busy
with the previous batch is neglected; it is small at low utilisation, and plans above 100 % are
refused.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from engine.attention.problem import Problem
from engine.base.errors import InvalidProblem
from engine.base.units import format_count, format_us, format_usd
from engine.history.known_time import are_comparable, not_comparable

if TYPE_CHECKING:
    import pandas as pd

# The smallest batch within the budget whose GPU time per request is within this of the best is
# chosen, because waiting longer gains almost nothing.
_DIMINISHING = 0.01
_CURVE_POINTS = 32


@dataclass(frozen=True, slots=True)
class WaitPoint:
    """Added latency and GPU time of collecting `batch` requests."""

    batch: int
    added_p95_us: float
    per_request_us: float  # GPU time
    origin: str  # of the GPU time
    in_budget: bool
    keeps_up: bool  # the GPU serves requests at least as fast as they arrive


@dataclass(frozen=True, slots=True)
class WaitPlan:
    """Collect `batch` requests, then launch them together."""

    batch: int
    added_p50_us: float  # relative to launching each request alone, at once
    added_p95_us: float
    latency_us: float  # of the launch
    origin: str  # of the launch's latency
    throughput_per_s: float  # requests, equal to their arrival rate
    capacity_per_s: float  # requests that the GPU can serve with this batch
    utilisation: float  # share of time that the GPU is busy
    per_request_us: float  # GPU time
    curve: tuple[WaitPoint, ...]  # cost over added latency, batches ascending, including `batch`
    reason: str


def wait_quantile_us(batch: int, rate_per_s: float, quantile: float) -> float:
    """Return the quantile of the time, in µs, that a request waits to become part of a batch."""
    from scipy.optimize import brentq

    longer = 1.0 - quantile
    last = batch - 1

    def excess(mean_arrivals: float) -> float:
        return _expected_shortfall(last, mean_arrivals) / batch - longer

    if excess(0.0) <= 0:
        return 0.0
    # After the time of twice the needed arrivals and a few more, the batch is almost certainly
    # full.
    mean_arrivals = brentq(excess, 0.0, 2.0 * last + 50.0)
    return float(1e6 * mean_arrivals / rate_per_s)


def _expected_shortfall(needed: int, mean: float) -> float:
    """E[max(0, needed − N)], N ~ Poisson(mean)."""
    from scipy.special import pdtr  # the distribution function

    if needed <= 0:
        return 0.0
    return float(needed * pdtr(needed, mean) - mean * pdtr(needed - 1, mean))


def plan_waiting(table: pd.DataFrame, rate_per_s: float, budget_ms: float) -> WaitPlan | str:
    """Return the batch to collect, with added latency within the budget for 95 % of requests.

    It is the smallest batch whose GPU time per request is within 1 % of the least that the budget
    allows.

    Args:
        table: `latency_us`, `origin` and `predicted_us` of launches of 1, 2, 3, … requests. Where
            the origins of a launch and of that of one request are not comparable, the difference
            of the predictions is the latency that the launch adds.
        rate_per_s: arriving requests per second.
        budget_ms: allowed added latency at the 95th percentile.

    Returns:
        The plan, or one sentence why there is none.

    Raises:
        InvalidProblem: rate or budget is not above zero.
    """
    for name, value in (("arrival rate", rate_per_s), ("time budget", budget_ms)):
        if not (math.isfinite(value) and value > 0):
            raise InvalidProblem(
                f"The {name} must be above 0, not {value:g}.", code="waiting_range"
            )
    latency_us = table["latency_us"].to_numpy()
    predicted_us = table["predicted_us"].to_numpy()
    origins = [str(origin) for origin in table["origin"]]
    is_like_first = [are_comparable(origins[0], origin) for origin in origins]
    longer_us = np.where(is_like_first, latency_us - latency_us[0], predicted_us - predicted_us[0])
    batches = np.arange(1, len(latency_us) + 1)
    keeps_up = rate_per_s * latency_us <= 1e6 * batches
    if not keeps_up.any():
        best = float(np.max(1e6 * batches / latency_us))
        return (
            f"{format_count(rate_per_s)} requests a second exceed what one GPU can serve at any "
            f"batch ({format_count(best)}): use {math.ceil(rate_per_s / best)} GPUs."
        )
    budget_us = 1e3 * budget_ms

    def added_us(batch: int, quantile: float) -> float:
        wait = wait_quantile_us(batch, rate_per_s, quantile)
        return wait + float(longer_us[batch - 1])

    # Waiting grows with the batch, so the largest batch within the budget is found by bisection.
    more = range(2, len(latency_us) + 1)
    low = 1 + bisect_right(more, budget_us, key=lambda batch: added_us(batch, 0.95))
    possible = batches[:low][keeps_up[:low]]
    if len(possible) == 0:
        least = int(batches[keeps_up][0])
        return (
            f"Serving {format_count(rate_per_s)} requests a second takes batches of {least:,}, and "
            f"waiting for them adds {format_us(added_us(least, 0.95))}, over the budget of "
            f"{format_us(budget_us)}: add a GPU or allow more time."
        )
    per_request = latency_us[possible - 1] / possible
    cheapest = int(np.argmin(per_request))
    enough = per_request <= (1 + _DIMINISHING) * per_request[cheapest]
    batch = int(possible[int(np.argmax(enough))])
    launch_us = float(latency_us[batch - 1])
    p50, p95 = added_us(batch, 0.5), added_us(batch, 0.95)
    spaced = np.geomspace(1, min(len(latency_us), 2 * low), _CURVE_POINTS).astype(int)
    shown = np.unique(np.append(spaced, [batch, possible[cheapest]])).tolist()
    longest, least_us = int(possible[cheapest]), float(per_request[cheapest])
    longer = ""
    if longest > batch:
        origin, of_longest = origins[batch - 1], origins[longest - 1]
        longer = (
            f" Waiting longer, for B={longest:,}, would add "
            f"{format_us(added_us(longest, 0.95) - p95)} more and save "
            f"{1 - least_us * batch / launch_us:.1%} of the GPU time."
            if are_comparable(origin, of_longest)
            else f" At B={longest:,}, a request takes {format_us(least_us)} of GPU time "
            f"{of_longest}, at B={batch:,} {format_us(launch_us / batch)} {origin} "
            f"({not_comparable(origin, of_longest)})."
        )
    curve = tuple(
        WaitPoint(
            batch=b,
            added_p95_us=(added := added_us(b, 0.95)),
            per_request_us=float(latency_us[b - 1] / b),
            origin=origins[b - 1],
            in_budget=added <= budget_us,
            keeps_up=bool(keeps_up[b - 1]),
        )
        for b in shown
    )
    return WaitPlan(
        batch=batch,
        added_p50_us=p50,
        added_p95_us=p95,
        latency_us=launch_us,
        origin=origins[batch - 1],
        throughput_per_s=rate_per_s,
        capacity_per_s=1e6 * batch / launch_us,
        utilisation=rate_per_s * launch_us / (1e6 * batch),
        per_request_us=launch_us / batch,
        curve=curve,
        reason=(
            f"Collecting B={batch:,} at {format_count(rate_per_s)} requests a second adds "
            f"{format_us(p50)} to the median request and {format_us(p95)} to the slowest 5 %, "
            f"within {format_us(budget_us)}." + longer
            if batch > 1
            else f"Waiting up to {format_us(budget_us)} gains nothing: launch at once."
        ),
    )


# Cost of queries on a GPU that is paid by the hour.
#
# A *query* is one query row: a launch answers B·H·S of them. A *request* is one batch element, H·S
# queries; a *token* is one position of it, H queries. All of one attention layer.


US_PER_HOUR = 3.6e9
_DAYS_PER_YEAR = 365
BILLION = 1e9
_MILLION = 1e6

TrafficUnit: TypeAlias = Literal["queries", "tokens", "requests"]


def queries_in(unit: TrafficUnit, problem: Problem) -> int:
    """Return the query rows of one query, token or request."""
    return {
        "queries": 1,
        "tokens": problem.num_heads,
        "requests": problem.num_heads * problem.seqlen,
    }[unit]


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a day's queries. Dollars are None without a price."""

    per_query_us: float
    gpu_hours_per_day: float
    usd_per_billion_queries: float | None
    usd_per_million_requests: float | None
    usd_per_million_tokens: float | None
    usd_per_day: float | None
    usd_per_year: float | None
    gpus_needed: int  # to answer them evenly over the day at the target utilisation
    origin: str  # of the time


@dataclass(frozen=True, slots=True)
class Saving:
    """Savings of a change from `now` to `then`; negative if it costs more.

    The differences are None where the origins of the two times are not comparable.
    """

    now: Cost
    then: Cost
    requests_per_day: float
    tokens_per_day: float
    gpu_hours_per_day: float | None
    usd_per_day: float | None
    usd_per_year: float | None
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def usd_per_billion_queries(per_query_us: float, price_usd_per_hour: float) -> float:
    """Return the cost of 10⁹ queries at this GPU time per query."""
    return price_usd_per_hour * per_query_us * BILLION / US_PER_HOUR


def cost(
    per_query_us: float,
    queries_per_day: float,
    price_usd_per_hour: float | None,
    utilisation: float = 1.0,
    *,
    problem: Problem,
    origin: str,
) -> Cost:
    """Return the cost of a day's queries.

    Args:
        per_query_us: GPU time of one query, in µs: a launch's latency over its B·H·S queries.
        queries_per_day: the traffic.
        price_usd_per_hour: of one GPU; None leaves the dollars None.
        utilisation: the share of its time a GPU is planned to be busy, above 0, at most 1.
        problem: gives the queries of a token and a request; its batch does not matter.
        origin: of the time.

    Raises:
        InvalidProblem: a time, traffic, price or utilisation out of range.
    """
    if not (math.isfinite(per_query_us) and per_query_us > 0):
        raise InvalidProblem(
            f"The time of a query must be above 0 µs, not {per_query_us:g}.",
            code="query_time_range",
        )
    if not (math.isfinite(queries_per_day) and queries_per_day > 0):
        raise InvalidProblem(
            f"Traffic must be above 0 queries a day, not {queries_per_day:g}.", code="traffic_range"
        )
    if not 0 < utilisation <= 1:
        raise InvalidProblem(
            f"Utilisation is a share above 0 and at most 1 (0.6 for 60 %), not {utilisation:g}.",
            code="utilisation_range",
        )
    if price_usd_per_hour is not None and not (
        math.isfinite(price_usd_per_hour) and price_usd_per_hour >= 0
    ):
        raise InvalidProblem(
            f"A price per hour is 0 or more, not {price_usd_per_hour:g}.", code="price_range"
        )
    hours = per_query_us * queries_per_day / US_PER_HOUR
    per_billion = per_day = per_year = per_requests = per_tokens = None
    if price_usd_per_hour is not None:
        per_billion = usd_per_billion_queries(per_query_us, price_usd_per_hour)
        per_tokens = per_billion / BILLION * _MILLION * queries_in("tokens", problem)
        per_requests = per_billion / BILLION * _MILLION * queries_in("requests", problem)
        per_day = price_usd_per_hour * hours
        per_year = per_day * _DAYS_PER_YEAR
    return Cost(
        per_query_us=per_query_us,
        gpu_hours_per_day=hours,
        usd_per_billion_queries=per_billion,
        usd_per_million_requests=per_requests,
        usd_per_million_tokens=per_tokens,
        usd_per_day=per_day,
        usd_per_year=per_year,
        gpus_needed=math.ceil(hours / (24 * utilisation)),
        origin=origin,
    )


def saving(now: Cost, then: Cost, queries_per_day: float, problem: Problem) -> Saving:
    """Return the difference of two costs of the same traffic."""
    requests = queries_per_day / queries_in("requests", problem)
    tokens = queries_per_day / queries_in("tokens", problem)
    comparable = are_comparable(now.origin, then.origin)
    hours = per_day = per_year = None
    if comparable:
        hours = now.gpu_hours_per_day - then.gpu_hours_per_day
    money = ""
    if now.usd_per_day is not None and then.usd_per_day is not None:
        money = f": {format_usd(now.usd_per_day)} against {format_usd(then.usd_per_day)} a day"
        if comparable:
            per_day = now.usd_per_day - then.usd_per_day
            per_year = per_day * _DAYS_PER_YEAR
            money += f", a difference of {format_usd(per_year)} a year"
    origins = ""
    if now.origin != then.origin:
        why = "" if comparable else f" ({not_comparable(now.origin, then.origin)})"
        origins = f" Now is {now.origin}, the recommended batch {then.origin}{why}."
    return Saving(
        now=now,
        then=then,
        requests_per_day=requests,
        tokens_per_day=tokens,
        gpu_hours_per_day=hours,
        usd_per_day=per_day,
        usd_per_year=per_year,
        reason=(
            f"{format_count(requests)} requests a day ({format_count(tokens)} tokens), one layer: "
            f"{now.gpu_hours_per_day:.3g} GPU-hours a day against {then.gpu_hours_per_day:.3g}"
            f"{money}.{origins}"
        ),
    )
