"""`auto`: which variant and config is taken for a problem on a GPU, and why."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

from engine.auto import choose
from engine.auto.renew import GPUS, renew
from engine.auto.table import changed_since, read_table
from engine.base.errors import InvalidProblem, UnknownName
from engine.cli.options import ConfigOptions, ProblemOptions, given_config, problem_from
from engine.cli.output import print_json
from engine.pipeline.request import target_device
from engine.sessions.known_times import open_history
from kernels.ladder import LADDER


@dataclass(frozen=True)
class AutoOptions(ProblemOptions, ConfigOptions):
    """The options of `auto`."""

    gpu: str | None
    renew: bool
    capability: list[str] | None
    json: bool


def run(args: AutoOptions) -> int:
    if args.renew:
        return _renew(args)
    if args.capability:
        raise InvalidProblem("--capability needs --renew; --gpu names the GPU to choose for.")

    problem, device = problem_from(args), target_device(args.gpu)
    choice = choose(problem, device, given_config(args), open_history())
    why_not = choice.kernel.unsupported(problem)
    if why_not is not None:
        raise InvalidProblem(why_not if choice.given else choice.reason)
    if args.json:
        print_json({"variant": choice.variant.id, "config": choice.config, "reason": choice.reason})
    else:
        print(choice.describe())
        print(choice.reason)
    return 0


def _renew(args: AutoOptions) -> int:
    if args.gpu is not None:
        raise InvalidProblem(
            "--renew ranks for compute capabilities: name one with --capability, not --gpu."
        )
    by_name = {".".join(map(str, capability)): capability for capability in GPUS}
    for name in args.capability or by_name:
        if name not in by_name:
            raise UnknownName(
                f"No GPU stands for compute capability {name!r}: known are {', '.join(by_name)}."
            )
        capability = by_name[name]
        before = read_table(capability)
        changed = changed_since(before, LADDER) if before is not None else None
        if before is not None and changed is not None:
            print(f"{name}: changed since {before.made}: {', '.join(changed) or 'nothing'}")
        start = time.monotonic()
        table = renew(capability, lambda stage: print(f"{stage} …", file=sys.stderr))
        took = time.monotonic() - start
        print(f"{name}: {len(table.rows)} rows, ranked on {table.gpu} in {took:.0f} s")
    return 0
