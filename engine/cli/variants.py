"""`variants`: list the ladder and own kernels, their figures on a problem, and their changes.

`auto`: the kernel chosen for a problem on a GPU, and why.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from engine.attention.config import OWN, added_kernels, all_variants, find_variant, variants_for
from engine.attention.problem import Problem
from engine.base import files
from engine.base.errors import AttuneError, InvalidProblem, UnknownName, unknown
from engine.base.table import Table, as_markdown
from engine.base.units import format_duration
from engine.choose.auto import choose
from engine.choose.auto.candidates import changed_since, eligible, read_table
from engine.choose.auto.renew import GPUS, directions, renew
from engine.cli.options import (
    PROBLEM,
    ConfigOptions,
    ProblemOptions,
    first_given,
    given_config,
    problem_from,
)
from engine.cli.output import print_json, print_table
from engine.own_kernels.registry import forget_kernel, register_kernel
from engine.pipeline.request import target_device
from engine.sessions.known_times import open_history
from kernels.ladder import LADDER, markdown_table
from kernels.variant import Variant

if TYPE_CHECKING:
    from engine.history import History
    from engine.kernel_figures.rung import Rung

_MAX_PAGE = 16 << 20  # bytes


@dataclass(frozen=True)
class VariantsOptions(ProblemOptions):
    """The options of `variants`."""

    variants: list[str]
    add: Path | None
    forget: str | None
    gpu: str | None
    forecasts: bool
    diff: str | None
    tree: bool
    markdown: bool
    into: Path | None
    renew: bool
    json: bool


def run(args: VariantsOptions) -> int:
    if args.renew:
        return _renew_figures(args)
    if args.into is not None and not (args.markdown or args.tree):
        raise InvalidProblem("--into writes what --markdown or --tree print: give one of them.")
    if args.gpu is None and (named := first_given(args, PROBLEM)) is not None:
        raise InvalidProblem(f"--{named.replace('_', '-')} needs a GPU: give --gpu.")
    whole = args.diff or args.forecasts or args.tree or (args.markdown and args.gpu is None)
    if args.variants and whole:
        raise InvalidProblem(
            "Variants can be named only for the list or, with --gpu, for the figures: leave out "
            "the names or the other option.",
            code="names_beside_a_fixed_list",
        )
    if args.add is not None:
        register_kernel(args.add)
    if args.forget is not None:
        _forget(args.forget)
    if args.forecasts:
        return _forecasts(args)
    if args.gpu is not None:
        return _figures(args, args.gpu)
    if args.diff is not None:
        raise InvalidProblem("--diff counts machine code, which is compiled for a GPU: give --gpu.")
    if args.tree:
        from engine.kernel_figures.changes import lessons_tree

        return _markdown(args.into, "ladder tree", f"```\n{lessons_tree()}\n```")
    if args.markdown:
        return _markdown(args.into, "ladder", markdown_table())
    mistakes = (*LADDER.errors, *OWN.errors)
    variants = [find_variant(name) for name in args.variants] or all_variants()
    for mistake in mistakes:
        print(f"error: {mistake}", file=sys.stderr)
    if args.json:
        print_json(
            [
                {
                    "id": v.id,
                    "name": v.name,
                    "title": v.title,
                    "idea": v.idea,
                    "head_dims": list(v.head_dims),
                    "dtypes": list(v.dtypes),
                    "takes": list(v.takes),
                    "min_compute_capability": list(v.min_compute_capability),
                    "passes": [p.entry for p in v.passes],
                    "tunables": [asdict(t) for t in v.tunables],
                }
                for v in variants
            ]
        )
        return 1 if mistakes else 0
    records = (
        {
            "variant": v.name,
            "idea": v.idea,
            "head_dim": " ".join(map(str, v.head_dims)),
            "features": " ".join(v.takes),
            "tunables (default)": ", ".join(f"{t.name}={t.default}" for t in v.tunables) or "none",
        }
        for v in variants
    )
    print_table(Table.of("Variants", records))
    return 1 if mistakes else 0


def _forecasts(args: VariantsOptions) -> int:
    from engine.kernel_figures.changes import forecasts_table
    from engine.sessions.known_times import open_history

    if args.gpu is not None:
        raise InvalidProblem("--forecasts uses the study's own problem and GPU: leave --gpu out.")
    table = forecasts_table(open_history())
    if args.json:
        print_json([dict(zip(table.columns, row, strict=True)) for row in table.rows])
    elif args.markdown:
        print(as_markdown(table))
    else:
        print_table(table)
    return 0


def _renew_figures(args: VariantsOptions) -> int:
    from engine.kernel_figures.rung import SHIPPED_GPUS, renew

    if args.gpu is not None and args.gpu not in SHIPPED_GPUS:
        raise UnknownName(f"No figures ship for {args.gpu!r}: known are {', '.join(SHIPPED_GPUS)}.")
    if args.variants or first_given(args, PROBLEM) is not None:
        raise InvalidProblem("--renew makes all figures of a GPU: give --gpu alone, or nothing.")
    for gpu in SHIPPED_GPUS if args.gpu is None else (args.gpu,):
        start = time.monotonic()
        made = renew(gpu, lambda stage: print(f"{stage} …", file=sys.stderr))
        took = time.monotonic() - start
        print(f"{gpu}: {len(made.reports)} kernels in {format_duration(took)}")
    return 0


def _figures(args: VariantsOptions, gpu: str) -> int:
    """Print the ladder's figures for a problem on a GPU, or the changes of one rung."""
    from engine.choose.auto.candidates import unused_instructions
    from engine.devices import target_gpu
    from engine.kernel_figures.rung import ladder_table, reasons, rung_dict, without_empty
    from engine.sessions.known_times import open_history

    named, device = [find_variant(name) for name in args.variants], target_gpu(gpu)
    problem = problem_from(args, named[0] if len(named) == 1 else None)
    if args.diff is not None:
        return _diff(find_variant(args.diff), problem, device.name)
    history = open_history()
    variants = named or variants_for(problem)
    rungs = [_worked_out(v, problem, device.name, history) for v in variants]
    if args.json:
        print_json([rung_dict(rung) for rung in rungs])
        return 0
    possible = [rung for rung in rungs if not rung.why_not]
    title = f"The ladder on {device.name}, {problem.label()}"
    table = without_empty(ladder_table(possible, title))
    if args.markdown and not possible:
        raise InvalidProblem(f"No variant takes this problem on {device.name}: choose another.")
    if args.markdown:
        return _markdown(args.into, "ladder figures", as_markdown(table))
    print_table(table)
    for sentence in reasons({rung.variant.id: rung.why_not for rung in rungs}):
        print(f"Not supported here: {sentence}")
    if sentence := unused_instructions(device):
        print(sentence)
    return 0


def _worked_out(variant: Variant, problem: Problem, gpu: str, history: History) -> Rung:
    from engine.kernel_figures.rung import known_rung, request_of, work_out_rung

    request = request_of(variant, problem, gpu)
    rung = known_rung(variant, request, history)
    if rung.is_complete:
        return rung
    print(f"{variant.id} …", file=sys.stderr)
    why = ""
    try:
        work_out_rung(request, history)
    except AttuneError as error:
        why = str(error)
    rung = known_rung(variant, request, history)
    return rung if rung.why_not or not why else replace(rung, why_not=why)


def _diff(variant: Variant, problem: Problem, gpu: str) -> int:
    from engine.kernel_figures.changes import (
        counts_diff,
        header_of,
        machine_code_diff,
        rung_before,
        source_diff,
    )
    from engine.sessions.known_times import open_history

    for label, text in header_of(variant):
        print(f"{label}: {text}" if label else text)
    before = rung_before(variant)
    if before is None:
        print(f"{variant.id} is the first rung: there is no earlier one to compare it with.")
        return 0
    history = open_history()
    pair = [_worked_out(v, problem, gpu, history) for v in (before, variant)]
    source = source_diff(before, variant)
    print(f"\n{source.text}\n")
    for rung in pair:
        if rung.why_not:
            print(f"{rung.variant.id}: {rung.why_not}")
            return 1
    print_table(counts_diff(*pair))
    print(f"Machine code: {machine_code_diff(*pair).summary()}, register numbers ignored.")
    return 0


def _markdown(into: Path | None, mark: str, text: str) -> int:
    """Print a table, or write it between `<!-- mark:begin -->` and `<!-- mark:end -->` of a
    file."""
    if into is None:
        print(text)
        return 0
    begin, end = f"<!-- {mark}:begin -->", f"<!-- {mark}:end -->"
    with files.explain_os_error(f"{into} cannot be rewritten", "name another file", named=True):
        try:
            whole = files.read(into, _MAX_PAGE).decode()
        except UnicodeDecodeError:
            raise InvalidProblem(f"{into} is not UTF-8 text: name another file.") from None
        before, _, rest = whole.partition(begin)
        _, has_end, after = rest.partition(end)
        if not has_end:
            raise InvalidProblem(f"{into} lacks the marks {begin} and {end}.")
        files.write(into, f"{before}{begin}\n{text}\n{end}{after}".encode())
    return 0


def _forget(name: str) -> None:
    known = [path.stem for path in added_kernels()]
    if name not in known:
        raise unknown("added kernel", name, known)
    forget_kernel(name)


@dataclass(frozen=True)
class AutoOptions(ProblemOptions, ConfigOptions):
    """The options of `auto`."""

    gpu: str | None
    renew: bool
    capability: list[str] | None
    json: bool


def run_auto(args: AutoOptions) -> int:
    if args.renew:
        return _renew_tables(args)
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


def _renew_tables(args: AutoOptions) -> int:
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
        for direction in directions(capability):
            if (before := read_table(capability, direction)) is not None:
                changed = ", ".join(changed_since(before, eligible(direction))) or "nothing"
                print(f"{name} {direction}: changed since {before.made}: {changed}")
            start = time.monotonic()
            table = renew(capability, direction, lambda stage: print(f"{stage} …", file=sys.stderr))
            took = time.monotonic() - start
            rows = f"{len(table.rows)} rows, ranked on {table.gpu} in {format_duration(took)}"
            print(f"{name} {direction}: {rows}")
    return 0
