"""A history with made-up resources: no compiler, no simulator, predictions by roofline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.attention.evaluation import Resources
from engine.attention.plan import LaunchPlan
from engine.attention.problem import Problem
from engine.devices.spec import DeviceSpec
from engine.history import History, KnownTime
from engine.model.equations import Calibration, CtaCurve
from engine.model.kernel import Estimate, Kernel, estimate, pass_reports
from kernels.variant import Variant

# Registers per thread of each pass.
RegistersOf = Callable[[LaunchPlan, int], int]


@dataclass(frozen=True)
class MadeUpHistory(History):
    registers_of: RegistersOf = lambda *_: 64
    spill_bytes: int = 0

    def resources(self, kernel: Kernel, problem: Problem) -> tuple[Resources, ...]:
        plan = kernel.plan(problem)
        return tuple(
            Resources(
                entry=p.entry,
                arch=kernel.device.arch,
                threads_per_cta=p.threads,
                registers_per_thread=self.registers_of(plan, number),
                static_smem_bytes=0,
                dynamic_smem_bytes=p.dynamic_smem_bytes,
                spill_store_bytes=self.spill_bytes,
                spill_load_bytes=0,
                stack_bytes=0,
            )
            for number, p in enumerate(plan.passes)
        )

    def estimate(
        self, kernel: Kernel, problem: Problem, calibration: Calibration | None = None
    ) -> Estimate:
        plan = kernel.plan(problem)
        passes = pass_reports(kernel, plan, self.resources(kernel, problem))
        calibration = calibration or self.calibration(kernel, problem)
        return estimate(kernel, plan, passes, calibration)

    def calibration(self, kernel: Kernel, problem: Problem) -> Calibration | None:
        return self._calibration(kernel, problem, False)

    def batch_curve(self, *_: object) -> None:  # type: ignore[override]
        return None

    def points_curve(self, *_: object) -> None:  # type: ignore[override]
        return None


# Registers per thread of compiled first passes on an L4, by head_dim.
_REGISTERS = {4: 43, 32: 64, 64: 95, 96: 128, 128: 161}


def compiled_on_an_l4() -> MadeUpHistory:
    """Return a history with the listed registers, else as many as a CTA of this size may have."""

    def registers(plan: LaunchPlan, number: int) -> int:
        if number:
            return 32
        listed = _REGISTERS[plan.problem.head_dim]
        return min(listed, 65536 // (-(-plan.passes[0].threads // 128) * 128) // 8 * 8, 255)

    return MadeUpHistory(registers_of=registers)


@dataclass(frozen=True)
class Times:
    """Known times given by a test instead of sessions."""

    of: Mapping[str, tuple[KnownTime, ...]]  # by GPU

    def on(
        self, device: str, problem: Problem | None = None, name: str = ""
    ) -> tuple[KnownTime, ...]:
        return tuple(
            t
            for t in self.of.get(device, ())
            if problem in (None, t.problem) and name in ("", t.name)
        )


def estimate_of(
    variant: Variant,
    plan: LaunchPlan,
    resources: tuple[Resources, ...],
    device: DeviceSpec,
    calibration: Calibration | None = None,
    curve: CtaCurve | None = None,
) -> Estimate:
    """Return the estimate of a plan with given resources."""
    kernel = Kernel.of(variant, device, plan.config)
    return estimate(kernel, plan, pass_reports(kernel, plan, resources), calibration, curve)
