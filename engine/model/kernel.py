"""`Kernel`: one variant in one config on one GPU, which all figures and times are of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, Self

from engine.config import default_config
from engine.devices import find_device
from engine.devices.spec import DeviceSpec
from engine.evaluation import Occupancy, PassReport, Resources
from engine.model.estimate import Estimate, launch_plan, pass_reports, unsupported_reason
from engine.names import find_variant
from engine.plan import LaunchPlan, compile_plan, resources
from engine.problem import Problem
from kernels.variant import Variant

if TYPE_CHECKING:
    from engine.model.equations import Calibration, CtaCurve
    from engine.model.launches import Launches
    from engine.model.occupancy import IntArray


@dataclass(frozen=True, slots=True)
class Kernel:
    """A variant, a config without gaps, and a GPU. Cheap to make and to compare; hashable."""

    variant: Variant
    values: tuple[tuple[str, int], ...]  # the config, in the variant's order
    device: DeviceSpec

    @classmethod
    def of(
        cls, variant: Variant | str, gpu: DeviceSpec | str, config: Mapping[str, int] | None = None
    ) -> Self:
        """By name or by what it is; values that are not given are the GPU's defaults.

        Raises:
            UnknownName: no such variant or GPU.
            InvalidKernel: there is a mistake in the kernel's description.
        """
        found = find_variant(variant) if isinstance(variant, str) else variant
        device = find_device(gpu) if isinstance(gpu, str) else gpu
        return cls(found, tuple(default_config(found, config or {}, device).items()), device)

    @property
    def config(self) -> dict[str, int]:
        return dict(self.values)

    def __hash__(self) -> int:
        return hash((self.variant.id, self.values, self.device.name))

    def describe(self) -> str:
        """`v12 num_warps=4 keys_per_warp=32`."""
        return " ".join([self.variant.id, *(f"{name}={value}" for name, value in self.values)])

    def with_config(self, **values: int) -> Self:
        """With other values of some tunables."""
        return replace(self, values=tuple((self.config | values).items()))

    def unsupported(self, problem: Problem) -> str | None:
        """Why it cannot run the problem: a sentence, or None."""
        return unsupported_reason(self.variant, problem, self.config, self.device)

    def plan(self, problem: Problem) -> LaunchPlan:
        """The launch. Raises InvalidProblem where variant, config or GPU do not take it."""
        return launch_plan(self.variant, problem, self.config, self.device)

    def resources(self, problem: Problem) -> tuple[Resources, ...]:
        """Registers and shared memory of each pass, by the real compiler; no GPU needed.

        Raises:
            InvalidProblem: as `plan`.
            CompileError, ToolMissing, UnknownName: as `compile_plan`.
        """
        plan = self.plan(problem)
        return resources(plan, compile_plan(plan, self.device.arch))

    def passes(self, problem: Problem) -> tuple[PassReport, ...]:
        """Resources and occupancy of each pass. Raises as `resources`."""
        return pass_reports(self, self.plan(problem), self.resources(problem))

    def occupancy(self, problem: Problem) -> Occupancy:
        """Of the main pass. Raises as `resources`."""
        return self.passes(problem)[0].occupancy


class Known(Protocol):
    """What is known of kernels beforehand, as the models ask for it.

    `engine.history.History` is it; it looks up, compiles or simulates as it was opened to.
    """

    def resources(self, kernel: Kernel, problem: Problem) -> tuple[Resources, ...]:
        """Of each pass. Raises ToolMissing where they are to be looked up and are not there."""
        ...

    def estimate(
        self, kernel: Kernel, problem: Problem, calibration: Calibration | None = None
    ) -> Estimate:
        """The prediction. `calibration` goes before the one that this knows of."""
        ...

    def calibration(self, kernel: Kernel, problem: Problem) -> Calibration | None:
        """What predictions of such problems are calibrated on; None where nothing was timed."""
        ...

    def batch_curve(
        self, kernel: Kernel, problem: Problem, launches: Launches, resident: IntArray
    ) -> CtaCurve | None:
        """CTA times by machine code of a problem at many batches; None where there are none.

        Args:
            launches: the problem's, at each batch.
            resident: CTAs per SM of each pass, `[passes, n]`.
        """
        ...

    def points_curve(
        self, kernel: Kernel, problems: tuple[Problem, ...], resident: IntArray
    ) -> CtaCurve | None:
        """CTA times by machine code of several problems; None unless all have them.

        Args:
            resident: CTAs per SM of each problem's main pass, `[n]`.
        """
        ...
