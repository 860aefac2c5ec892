"""Compare two trees: find the kernels that differ, and give verdicts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from engine.attention.problem import Problem
from engine.base.errors import AttuneError, unknown
from engine.devices import find_device
from engine.gate.running import Checked, Done, Work, do_work, measuring_gpu
from engine.gate.settings import Budget, Settings, exceeded, read_settings
from engine.gate.trees import (
    SETTINGS_NAME,
    Found,
    Tree,
    find_kernels,
    pair_kernels,
    settings_of,
)
from engine.machine_code.native_library import build_all
from engine.versions.figures import (
    Answer,
    Finding,
    GateVerdict,
    compare_answers,
    finding,
    variant_of,
)
from engine.versions.workers import Failed, Workers
from kernels.variant import Variant

if TYPE_CHECKING:
    from engine.pipeline.evaluate import Evaluator

# Correctness is checked on problems that the host executes in seconds.
_MAX_HEADS, _MAX_ROWS = 2, 200


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel on one problem and GPU."""

    kernel: str
    problem: Problem
    gpu: str
    before: Answer
    after: Answer
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class KernelReport:
    """The report on one kernel that differs between the sides, or exists on only one."""

    kernel: str
    name: str  # file name in the later tree, else in the earlier one
    rows: tuple[Row, ...]
    findings: tuple[Finding, ...]  # on the kernel as a whole: other archs, correctness
    remarks: tuple[str, ...] = ()  # changes of its description, and parts without a verdict


@dataclass(frozen=True, slots=True)
class GateReport:
    """The gate's result."""

    base: str
    head: str
    settings: Settings
    kernels: tuple[KernelReport, ...]
    unchanged: tuple[str, ...]  # ids
    budgets: tuple[tuple[Budget, tuple[Finding, ...]], ...]
    remarks: tuple[str, ...] = ()

    @property
    def verdicts(self) -> tuple[tuple[str, Problem | None, str, Finding], ...]:
        """Return all (kernel, problem, gpu, finding), regressions first."""
        every: list[tuple[str, Problem | None, str, Finding]] = []
        for kernel in self.kernels:
            every += [(kernel.kernel, None, "", f) for f in kernel.findings]
            every += [(r.kernel, r.problem, r.gpu, f) for r in kernel.rows for f in r.findings]
        every += [(b.kernel, b.problem, b.gpu, f) for b, findings in self.budgets for f in findings]
        return tuple(sorted(every, key=lambda entry: not entry[3].is_regression))

    @property
    def exit_code(self) -> int:
        """Return the exit code. 1: a regression; 3: no verdict on something; else 0."""
        findings = [finding for *_, finding in self.verdicts]
        if any(f.is_regression for f in findings):
            return 1
        return 3 if any(f.verdict is GateVerdict.NOT_JUDGED for f in findings) else 0


def judge(
    base: Tree,
    head: Tree,
    *,
    settings: Settings | None = None,
    only: Sequence[str] = (),
    native: bool = False,
    measure: bool = False,
    processes: int = 0,
    on_done: Callable[[str], None] | None = None,
    evaluator: Evaluator | None = None,
) -> GateReport:
    """Compare two trees.

    Args:
        settings: by default those of the later tree.
        only: ids of kernels; empty: all.
        native: check the later side with host builds on this CPU instead of executing machine code
            in software.
        measure: time kernels with changed code on this machine's GPU, both sides in one run of the
            sampler; these verdicts replace those on simulated times for that GPU.
        on_done: called with a line about each finished task.
        evaluator: times kernels, and all tasks are run in this process; default: tasks are run in
            processes of their own.

    Raises:
        SettingsError: a mistake in `attune-gate.toml`.
        UnknownName: an id in `only` is in neither tree and has no budget.
        ToolMissing: there is no GPU to measure on.
    """
    chosen = settings or read_settings(head.root)
    here = measuring_gpu() if measure else ""
    if here and here not in chosen.gpus:
        chosen = replace(chosen, gpus=(here, *chosen.gpus))
    first, second = find_kernels(base, chosen.kernels), find_kernels(head, chosen.kernels)
    if len(base.names) == len(head.names) == 1:  # two files are compared whatever their names
        first, renamed = dict(zip(second, first.values(), strict=False)), dict[str, str]()
    else:
        first, renamed = pair_kernels(first, second)
    every = dict.fromkeys([*second, *first, *(b.kernel for b in chosen.budgets)])
    for name in only:
        if name not in every:
            raise unknown("kernel", name, every)
    ids = [k for k in dict.fromkeys([*second, *first]) if not only or k in only]
    changed = [k for k in ids if _digest(first.get(k)) != _digest(second.get(k))]
    budgets = [b for b in chosen.budgets if not only or b.kernel in only]
    works = [w for k in changed for w in _works(k, first.get(k), second.get(k), chosen, native)]
    # An unchanged kernel met its budget before, unless the budget changed.
    asked = ids if _settings_text(base) != _settings_text(head) else changed
    works += _budget_works(budgets, second, set(asked), chosen)
    if works:
        # Built once, outside a kernel's time limit. If that fails, each kernel's verdict says so.
        with suppress(AttuneError):
            build_all()
    answers = _run(works, chosen, processes, on_done, evaluator)
    if here:  # measured last, when the CPU is idle
        timed = [
            replace(work, measure=True)
            for work in works
            if work.gpu == here and work.before is not None and work.execute is None
        ]
        for kernel, done in _run(timed, chosen, 1, on_done, evaluator).items():
            answers[kernel] += done
    reports = tuple(
        _report(k, first.get(k), second.get(k), answers[k], chosen, renamed.get(k, ""))
        for k in changed
    )
    return GateReport(
        base=base.label,
        head=head.label,
        settings=chosen,
        kernels=reports,
        unchanged=tuple(k for k in ids if k not in changed),
        budgets=tuple((b, _budget_findings(b, second, answers)) for b in budgets),
        remarks=tuple(_remarks(base, head, changed, native, here, chosen, ids)),
    )


Answers = dict[str, list[tuple[Work, Done | Failed]]]


def _run(
    works: Sequence[Work],
    settings: Settings,
    processes: int,
    on_done: Callable[[str], None] | None,
    evaluator: Evaluator | None,
) -> Answers:
    """Run all tasks; return their results by kernel."""

    def tell(work: Work, _: Done | Failed) -> None:
        if on_done is not None:
            what = "other archs" if work.archs else work.execute or work.gpu
            on_done(f"{work.kernel}: {what}")

    if evaluator is None:
        workers = Workers(do_work, settings.seconds, settings.memory_gib, processes)
        results = workers.run(works, tell)
    else:
        results = [do_work(work, evaluator) for work in works]
    by_kernel: Answers = {}
    for work, done in zip(works, results, strict=True):
        by_kernel.setdefault(work.kernel, []).append((work, done))
    return _Default(by_kernel)


class _Default(dict[str, list[tuple[Work, "Done | Failed"]]]):
    def __missing__(self, key: str) -> list[tuple[Work, Done | Failed]]:
        return []


def _works(
    kernel: str, before: Found | None, after: Found | None, settings: Settings, native: bool
) -> Iterable[Work]:
    if after is None or after.variant is None or (before is not None and before.unknown):
        return
    config = settings.config.get(kernel, {})
    first = before.path if before is not None and before.variant is not None else None
    problems = settings.problems_of(after.variant)
    for gpu in settings.gpus:
        yield Work(kernel, first, after.path, gpu, problems, config)
    archs = tuple(a for a in settings.archs if _compiles_for(after.variant, a))
    if archs:
        taken = [p for p in problems if after.variant.unsupported(p, _full(after, config)) is None]
        if taken:
            yield Work(kernel, first, after.path, "", (taken[0],), config, archs=archs)
    small = tuple(dict.fromkeys(_small(p) for p in problems))
    if native:
        gpu = settings.gpus[0]
        yield Work(kernel, first, after.path, gpu, small, config, execute="native code")
        return
    by_arch: dict[str, str] = {}
    for name in settings.gpus:
        by_arch.setdefault(find_device(name).arch, name)
    for gpu in by_arch.values():
        yield Work(kernel, first, after.path, gpu, small, config, execute="machine code")


def _budget_works(
    budgets: Sequence[Budget],
    second: Mapping[str, Found],
    asked: Collection[str],
    settings: Settings,
) -> Iterable[Work]:
    for budget in budgets:
        found = second.get(budget.kernel)
        if budget.kernel in asked and found is not None and found.variant is not None:
            config = settings.config.get(budget.kernel, {})
            yield Work(budget.kernel, None, found.path, budget.gpu, (budget.problem,), config)


def _budget_findings(
    budget: Budget, second: Mapping[str, Found], answers: Answers
) -> tuple[Finding, ...]:
    if budget.kernel not in second:
        what = f"There is a budget for {budget.label}, which does not exist any more: remove it."
        return (finding(GateVerdict.NOT_JUDGED, what),)
    for work, done in answers[budget.kernel]:
        if (work.gpu, work.problems, work.before) != (budget.gpu, (budget.problem,), None):
            continue
        if isinstance(done, Failed):
            return (finding(GateVerdict.NOT_JUDGED, done.sentence),)
        if not done.answers:
            continue
        after = done.answers[0][1]
        if after.figures is None:
            why = after.fault or after.obstacle
            return (finding(GateVerdict.NOT_JUDGED, f"Its budget is not judged: {why}"),)
        return exceeded(budget, after.figures)
    return ()


def _report(
    kernel: str,
    before: Found | None,
    after: Found | None,
    done: Sequence[tuple[Work, Done | Failed]],
    settings: Settings,
    old_name: str,
) -> KernelReport:
    name = next(found.name for found in (after, before) if found is not None)
    findings: list[Finding] = []
    if after is None:
        removed = finding(GateVerdict.REMOVED, f"{name} was removed.")
        return KernelReport(kernel, name, (), (removed,))
    if unknown := after.unknown or (before.unknown if before is not None else ""):
        return KernelReport(kernel, name, (), (finding(GateVerdict.NOT_JUDGED, unknown),))
    if after.variant is None:
        was = "" if before is None or before.variant is None else " It worked before."
        broken = finding(GateVerdict.BROKEN, f"{after.fault}{was}")
        return KernelReport(kernel, name, (), (broken,))
    is_new = before is None or before.variant is None
    if is_new:
        why = f"Before: {before.fault}" if before is not None else f"{name} is new."
        verdict = GateVerdict.FIXED if before is not None else GateVerdict.NEW
        findings.append(finding(verdict, why))
    rows: list[Row] = []
    measured = {
        (work.gpu, problem): found
        for work, result in done
        if isinstance(result, Done)
        for problem, found in result.measured
    }
    checked = tuple(_checked_findings(done))
    is_wrong = any(f.verdict is GateVerdict.INCORRECT for f in checked)
    for work, result in done:
        if isinstance(result, Failed):
            sentence = f"On {work.gpu or 'other archs'}: {result.sentence}"
            findings.append(finding(GateVerdict.NOT_JUDGED, sentence))
            continue
        if work.before is None and not is_new:
            continue  # of a budget
        pairs = zip(work.problems, result.answers, strict=False)
        for problem, (a, b) in pairs:
            by_time = measured.get((work.gpu, problem))
            if is_wrong and b.figures is not None:  # an incorrect kernel gets no time
                b, by_time = replace(b, figures=replace(b.figures, simulated_us=None)), None
            row = _row(work, problem, a, b, settings, by_time, is_new=is_new)
            rows += [row] if row is not None else []
        findings += _arch_findings(result.arch_answers, is_new)
    findings += checked
    if not rows and not any(f.verdict is GateVerdict.NOT_JUDGED for f in findings):
        problems = "; ".join(p.label() for p in settings.problems_of(after.variant))
        gpus = ", ".join(settings.gpus)
        what = f"Neither version takes any of the problems ({problems}) on {gpus}: name others."
        findings.append(finding(GateVerdict.NOT_JUDGED, what))
    remarks = tuple(_changed_meaning(before, after)) if not is_new else ()
    if old_name:
        remarks = (f"It was {old_name} before.", *remarks)
    order = sorted(findings, key=lambda f: not f.is_regression)
    return KernelReport(kernel, name, tuple(rows), tuple(order), remarks)


def _row(
    work: Work,
    problem: Problem,
    before: Answer,
    after: Answer,
    settings: Settings,
    measured: Finding | None,
    *,
    is_new: bool,
) -> Row | None:
    if not is_new:
        findings = compare_answers(before, after, settings.thresholds, measured)
        if not findings:
            return None
    elif after.refused:
        return None
    elif after.fault:
        findings = (finding(GateVerdict.BROKEN, after.fault),)
    elif after.obstacle:
        findings = (finding(GateVerdict.NOT_JUDGED, after.obstacle),)
    else:
        findings = (finding(GateVerdict.NEW, "There is no earlier version to compare with."),)
    return Row(work.kernel, problem, work.gpu, before, after, findings)


def _arch_findings(
    answers: Iterable[tuple[str, Answer, Answer]], is_new: bool
) -> Iterable[Finding]:
    for arch, before, after in answers:
        if after.fault and (is_new or not before.fault):
            yield finding(GateVerdict.BROKEN, f"For {arch}: {after.fault}")


def _checked_findings(done: Sequence[tuple[Work, Done | Failed]]) -> Iterable[Finding]:
    """Return findings of the execution, once for all GPUs with the same result."""
    gpus: dict[tuple[Problem, Checked], list[str]] = {}
    for work, result in done:
        if isinstance(result, Done):
            for problem, outcome in result.checked:
                gpus.setdefault((problem, outcome), []).append(work.gpu)
    for (problem, outcome), where in gpus.items():
        what = f"{problem.label()}, code for {', '.join(where)}: {outcome.sentence}"
        if outcome.passed is False:
            yield finding(GateVerdict.INCORRECT, what)
        elif outcome.passed is None:
            yield finding(
                GateVerdict.NOT_JUDGED, f"It is not known whether the output is right. {what}"
            )


def _changed_meaning(before: Found | None, after: Found) -> Iterable[str]:
    """Return differences between the two descriptions."""
    first, second = (before.variant if before else None), after.variant
    if first is None or second is None:
        return
    for what, old, new in (
        ("head_dims", first.head_dims, second.head_dims),
        ("dtypes", first.dtypes, second.dtypes),
        ("causal", first.causal, second.causal),
        ("takes", first.takes, second.takes),
        ("least compute capability", first.min_compute_capability, second.min_compute_capability),
        ("shared K/V heads", first.gqa, second.gqa),
    ):
        if old != new:
            yield f"Its description changed: {what} {old} → {new}."
    tunables = {t.name: t for t in first.tunables}
    for tunable in second.tunables:
        old_one = tunables.pop(tunable.name, None)
        if old_one is None:
            yield f"Its description changed: tunable {tunable.name} is new."
        elif (old_one.default, old_one.values) != (tunable.default, tunable.values):
            yield (
                f"Its description changed: {tunable.name} takes {old_one.values}, "
                f"{old_one.default} by default → {tunable.values}, {tunable.default} by default."
            )
    for removed in tunables:
        yield f"Its description changed: tunable {removed} was removed."


def _remarks(
    base: Tree,
    head: Tree,
    changed: Sequence[str],
    native: bool,
    measured_on: str,
    settings: Settings,
    ids: Sequence[str],
) -> Iterable[str]:
    if not ids:
        where = " that match kernels = …" if settings.kernels else ""
        yield f"Neither side has kernels with a description{where}."
    if changed and native:
        yield "Results were checked with host builds, run on this CPU with your rights."

    if changed and measured_on:
        yield (
            f"Times on {measured_on} were measured on this machine, both versions in one run in "
            "shuffled rounds; the others are simulated."
        )
    if changed and not native:
        yield (
            "No native code of the change was run. Results were checked by executing the machine "
            "code in software, in two orders of warps, checking bounds and shared-memory races. "
            "--run also finds missing fences and uninitialised reads, with host builds that run on "
            "this CPU with your rights."
        )
    if _settings_text(base) != _settings_text(head) and len(head.names) > 1:
        yield f"The change also edits {SETTINGS_NAME}, which sets these verdicts: read that diff."


def _settings_text(tree: Tree) -> bytes:
    path = settings_of(tree.root)
    return path.read_bytes() if path.name in tree.names else b""


def _digest(found: Found | None) -> str:
    return "" if found is None else found.digest


def _full(found: Found, config: Mapping[str, int]) -> dict[str, int]:
    variant = variant_of(found.path)
    return {**variant.default_config(), **config}


def _compiles_for(variant: Variant, arch: str) -> bool:
    number = int("".join(c for c in arch if c.isdigit()))
    has, needed = divmod(number, 10), variant.min_compute_capability
    return has == needed if variant.arch_specific else has >= needed


def _small(problem: Problem) -> Problem:
    """Return a small problem of the same kind; its 203 rows leave a partial last tile."""
    group = problem.head_group
    heads = max(1, min(problem.kv_heads, _MAX_HEADS))
    keys = None if problem.seqlen_kv is None else min(problem.seqlen_kv, _MAX_ROWS)
    return replace(
        problem,
        batch=1,
        num_heads=heads * group,
        num_heads_kv=heads,
        seqlen=min(problem.seqlen, _MAX_ROWS),
        seqlen_kv=keys,
        seqlens=None,
    )
