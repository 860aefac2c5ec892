"""Which values the tunables take: those given, else those tuned for the problem, else defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from engine.base.errors import InvalidProblem, StoreError
from engine.devices.spec import DeviceSpec
from engine.problem import Problem
from engine.tuned import TunedConfig, find_tuned
from kernels.variant import Variant

ConfigOrigin: TypeAlias = Literal["given", "auto", "tuned", "default"]


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """A config without gaps, and where each value comes from."""

    values: dict[str, int]
    origins: Mapping[str, ConfigOrigin] = field(default_factory=dict)  # by tunable
    tuned: TunedConfig | None = None  # the entry that values were taken from
    error: str = ""  # why the tuned configs could not be read; one sentence

    def describe(self) -> str:
        """`default`, `tuned for B1 H8 S128 D64 fp16 (12.3 µs measured)`, `num_splits given, …`."""
        if not self.origins:
            return "no tunables"
        origins = set(self.origins.values())
        rest: str = next(o for o in ("auto", "tuned", "default", "given") if o in origins)
        if self.tuned is not None:
            rest = f"tuned for {self.tuned.describe()}"
        if "given" not in origins:
            return rest
        if len(origins) == 1:
            return "given"
        given = ", ".join(name for name, origin in self.origins.items() if origin == "given")
        return f"{given} given, the rest {rest}"


def check_given(variant: Variant, given: Mapping[str, int]) -> None:
    """InvalidProblem for a tunable that the variant lacks, or a value that it does not offer."""
    if (why := variant.unoffered(given)) is not None:
        raise InvalidProblem(why)


def default_config(
    variant: Variant, given: Mapping[str, int], device: DeviceSpec | None = None
) -> dict[str, int]:
    """The variant's defaults on a GPU, overridden by what is given; tuned configs are not asked."""
    return {**variant.default_config(device.num_sms if device is not None else None), **given}


def resolve_config(
    variant: Variant, given: Mapping[str, int], problem: Problem, device: DeviceSpec | None
) -> ResolvedConfig:
    """The config of an evaluation.

    A config without gaps is never changed. Values that are missing come from the entry kept for
    this GPU, variant and class of problems, unless the variant refuses them beside those given.
    Unknown names stay in, for `Variant.unsupported` to report.

    Args:
        device: None: not known, so that nothing was tuned for it.
    """
    values = default_config(variant, given, device)
    origins: dict[str, ConfigOrigin] = {n: "given" if n in given else "default" for n in values}
    if device is None or all(name in given for name in values):
        return ResolvedConfig(values, origins)
    try:
        tuned = find_tuned(device.name, variant, problem)
    except StoreError as error:
        return ResolvedConfig(values, origins, error=f"Defaults are used: {error}")
    if tuned is None:
        return ResolvedConfig(values, origins)
    both = {**values, **tuned.config, **given}
    if variant.unsupported(problem, both) is not None:
        return ResolvedConfig(values, origins)
    for name in tuned.config:
        if name not in given:
            origins[name] = "tuned"
    return ResolvedConfig(both, origins, tuned)
