"""What queries cost on a GPU that is paid by the hour.

A *query* is one query row: a launch answers B·H·S of them. A *request* is one batch element, H·S
queries; a *token* is one position of it, H queries. All of one attention layer.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from engine.errors import InvalidProblem
from engine.problem import Problem
from engine.units import format_count, format_usd

_US_PER_HOUR = 3.6e9
_DAYS_PER_YEAR = 365
BILLION = 1e9
_MILLION = 1e6

TrafficUnit: TypeAlias = Literal["queries", "tokens", "requests"]


def queries_in(unit: TrafficUnit, problem: Problem) -> int:
    """Query rows of one query, token or request."""
    return {
        "queries": 1,
        "tokens": problem.num_heads,
        "requests": problem.num_heads * problem.seqlen,
    }[unit]


@dataclass(frozen=True, slots=True)
class Cost:
    """One way to answer a day's queries. Dollars are None without a price."""

    per_query_us: float
    gpu_hours_per_day: float
    usd_per_billion_queries: float | None
    usd_per_million_requests: float | None
    usd_per_million_tokens: float | None
    usd_per_day: float | None
    usd_per_year: float | None
    gpus_needed: int  # to answer them evenly over the day at the target utilisation


@dataclass(frozen=True, slots=True)
class Saving:
    """What changing from `now` to `then` saves; negative when it costs more."""

    now: Cost
    then: Cost
    requests_per_day: float
    tokens_per_day: float
    gpu_hours_per_day: float
    usd_per_day: float | None
    usd_per_year: float | None
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def usd_per_billion_queries(per_query_us: float, price_usd_per_hour: float) -> float:
    """What 10⁹ queries cost at this GPU time per query."""
    return price_usd_per_hour * per_query_us * BILLION / _US_PER_HOUR


def cost(
    per_query_us: float,
    queries_per_day: float,
    price_usd_per_hour: float | None,
    utilisation: float = 1.0,
    *,
    problem: Problem,
) -> Cost:
    """The cost of a day's queries.

    Args:
        per_query_us: GPU time of one query, in µs: a launch's latency over its B·H·S queries.
        queries_per_day: the traffic.
        price_usd_per_hour: of one GPU; None leaves the dollars None.
        utilisation: the share of its time a GPU is planned to be busy, above 0, at most 1.
        problem: says how many queries a token and a request have; its batch does not matter.

    Raises:
        InvalidProblem: a time, traffic, price or utilisation out of range.
    """
    if not (math.isfinite(per_query_us) and per_query_us > 0):
        raise InvalidProblem(f"The time of a query must be above 0 µs, not {per_query_us:g}.")
    if not (math.isfinite(queries_per_day) and queries_per_day > 0):
        raise InvalidProblem(f"Traffic must be above 0 queries a day, not {queries_per_day:g}.")
    if not 0 < utilisation <= 1:
        raise InvalidProblem(
            f"Utilisation is a share above 0 and at most 1 (0.6 for 60 %), not {utilisation:g}."
        )
    if price_usd_per_hour is not None and not (
        math.isfinite(price_usd_per_hour) and price_usd_per_hour >= 0
    ):
        raise InvalidProblem(f"A price per hour is 0 or more, not {price_usd_per_hour:g}.")
    hours = per_query_us * queries_per_day / _US_PER_HOUR
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
    )


def saving(now: Cost, then: Cost, queries_per_day: float, problem: Problem) -> Saving:
    """The difference of two costs of the same traffic."""
    requests = queries_per_day / queries_in("requests", problem)
    tokens = queries_per_day / queries_in("tokens", problem)
    hours = now.gpu_hours_per_day - then.gpu_hours_per_day
    per_day = per_year = None
    money = ""
    if now.usd_per_day is not None and then.usd_per_day is not None:
        per_day = now.usd_per_day - then.usd_per_day
        per_year = per_day * _DAYS_PER_YEAR
        money = (
            f": {format_usd(now.usd_per_day)} against {format_usd(then.usd_per_day)} a day, "
            f"{format_usd(per_year)} a year"
        )
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
            f"{money}."
        ),
    )
