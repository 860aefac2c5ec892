"""Batches of the backward pass: simulated at some batches, interpolated between them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from made_up_history import MadeUpHistory
from words import raises, says

from engine.attention.evaluation import Resources
from engine.attention.problem import Problem
from engine.base.errors import InvalidProblem
from engine.choose.batch.recommend import BatchRequest, recommend_batch
from engine.devices import find_device
from engine.model.backward import PassTime, backward_times, estimate_backward
from engine.model.kernel import Estimate, Kernel, pass_reports
from kernels.ladder import by_id

ONE = Problem(1, 8, 512, 64, direction="backward")


def _kernel() -> Kernel:
    device, variant = find_device("A100 80GB SXM"), by_id("v24")
    return Kernel.of(variant, device, variant.default_config(device.num_sms))


@dataclass(frozen=True)
class Simulated(MadeUpHistory):
    """A history in which the busiest SM takes 10 µs a CTA; records the batches asked for."""

    asked: list[int] = field(default_factory=list)
    unknown: int = 0  # a batch that is not simulated

    def estimate(self, kernel: Kernel, problem: Problem, *_: object) -> Estimate:
        self.asked.append(problem.batch)
        plan = kernel.plan(problem)
        passes = pass_reports(kernel, plan, self.resources(kernel, problem))
        us = 10.0 * -(-plan.passes[1].ctas // 108)
        times = [PassTime(us, us, 10.0, 0.0, 0.1)] * 3
        return estimate_backward(
            kernel, plan, passes, None if problem.batch == self.unknown else times
        )

    def resources(self, kernel: Kernel, problem: Problem) -> tuple[Resources, ...]:
        return tuple(
            replace(r, registers_per_thread=128) for r in super().resources(kernel, problem)
        )


def _times(known: Simulated, last: int) -> Any:
    batches = np.arange(1, last + 1)
    load = -(-64 * batches // 108)
    return backward_times(_kernel(), ONE, batches, load, np.full(last, 2), known)


def test_time_between_batches_follows_the_busiest_sm() -> None:
    known = Simulated()
    found = _times(known, 40)
    assert known.asked == [1, 2, 3, 4, 6, 8, 12, 16, 24, 27]  # 16 CTAs an SM: 8 rounds of 2
    load = -(-64 * np.arange(1, 41) // 108)
    floor_us = found.us[0] - 30.0
    assert found.by_machine_code
    assert found.us[:27] == pytest.approx(floor_us + 30.0 * load[:27], rel=0.03)
    assert np.all(np.diff(found.us) >= 0)
    assert np.diff(found.us[27:]) == pytest.approx(found.us[28] - found.us[27])
    assert np.all((found.low_us < found.us) & (found.us < found.high_us))
    assert set(found.limited_by) <= {"one CTA", "CTAs per SM", "launch floor", "math peak", "DRAM"}


def test_one_batch_that_is_not_simulated_makes_all_assumed() -> None:
    found = _times(Simulated(unknown=4), 8)
    assert not found.by_machine_code
    assert found.high_us / found.us == pytest.approx(4.0)
    assert len(_times(Simulated(), 1).us) == 1


def test_a_batch_is_recommended_for_the_backward_pass() -> None:
    request = BatchRequest(
        "v24", "A100 80GB SXM", seqlen=512, head_dim=64, heads=8, max_batch=32,
        features={"direction": "backward"}, alternatives=False,
    )  # fmt: skip
    found = recommend_batch(request, Simulated())
    assert found.method == "machine code"
    assert [r.target for r in found.recommendations] == [0.7, 0.9, 0.95]
    assert found.problem.direction == "backward"
    table = found.table
    assert list(table["ctas"][:2]) == [64, 128]  # CTAs of the pass over key tiles
    assert table["flops"][1] == 2 * ONE.flops
    assert table["device_bytes"][2] == _kernel().plan(replace(ONE, batch=3)).device_bytes
    share = table["batch"] / table["latency_us"]
    enough = found.recommendations[1].enough_batch
    assert share[enough - 1] >= 0.9 * share.max() > max(share[: enough - 1], default=0)
    assert found.next_point is None
    assert any(says(note, "the_passes_are") for note in found.notes)
    with raises(InvalidProblem, "launch_not_taken") as caught:
        recommend_batch(replace(request, features={}), Simulated())
    assert says(str(caught.value), "computes_only_backward")
