"""`gate`: a verdict on every kernel that changed between two states, without a GPU.

The report is printed as tables, JSON, or Markdown for a pull request's comment.

Exit code 0: fine. 1: a regression. 2: invalid input. 3: no regression, but no verdict on something.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.base import files
from engine.base.errors import InvalidProblem, ToolMissing
from engine.base.table import Table, as_markdown
from engine.cli.output import print_json, print_table
from engine.gate.accept import accept
from engine.gate.commits import history_of, history_table
from engine.gate.commits import to_dict as history_to_dict
from engine.gate.judge import GateReport, KernelReport, Row, judge
from engine.gate.trees import open_trees, working_tree
from engine.versions.figures import LABELS, default_threshold, figure_text


@dataclass(frozen=True)
class GateOptions:
    """The options of `gate`."""

    base: str | None
    head: str | None
    kernel: list[str]
    run_kernels: bool
    measure: bool
    accept: bool
    history: str | None
    last: int
    markdown: Path | None
    json: bool


def run(args: GateOptions) -> int:
    if args.accept or args.history is not None:
        _refuse_ignored_options(args)
        return _accept(args) if args.history is None else _history(args, args.history)
    if args.base is None:
        raise InvalidProblem("gate takes BASE, for instance HEAD~1, origin/main or a folder.")
    try:
        with open_trees(args.base, args.head, Path.cwd()) as (base, head):
            report = judge(
                base,
                head,
                only=args.kernel,
                native=args.run_kernels,
                measure=args.measure,
                on_done=_progress(args),
            )
            _write(report, args)
    except ToolMissing as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    return report.exit_code


def _refuse_ignored_options(args: GateOptions) -> None:
    """Raise InvalidProblem for an option that has no effect with --accept or --history."""
    mode = "--accept" if args.accept else "--history"
    for name, value in (
        ("BASE", args.base),
        ("--run", args.run_kernels),
        ("--measure", args.measure),
        ("--markdown", args.markdown),
        ("--kernel", args.kernel and not args.accept),
    ):
        if value:
            raise InvalidProblem(
                f"{mode} and {name} exclude each other: leave one of them out.", code="gate_options"
            )


def _accept(args: GateOptions) -> int:
    """Renew budgets; print the changes and commit them."""
    renewed = accept(working_tree(Path.cwd()), args.kernel)
    if args.json:
        print_json({"moved": list(renewed.moved), "commit": renewed.commit or None})
        return 0
    for line in renewed.moved:
        print(line)
    if renewed.commit:
        print(f"Written to {renewed.path.name} and committed as {renewed.commit[:7]}.")
    else:
        print("Every budget already equals the kernels' figures.")
    return 0


def _history(args: GateOptions, kernel: str) -> int:
    history = history_of(working_tree(Path.cwd()), kernel, args.last, on_done=_progress(args))
    if args.json:
        print_json(history_to_dict(history))
        return 0
    print_table(history_table(history))
    for step in history.steps:
        if step.is_worse:
            print(f"\n{step.commit[:7]} {step.subject}")
            for finding in step.findings:
                print(f"  {finding.verdict}: {finding.what}")
            print(step.diff)
    return 0


def _progress(args: GateOptions) -> Callable[[str], None] | None:
    if args.json or not sys.stderr.isatty():
        return None
    return lambda line: print(f"  {line}", file=sys.stderr)


def _write(report: GateReport, args: GateOptions) -> None:
    if args.markdown is not None:
        remedy = "name another file"
        with files.explain_os_error(f"The report cannot be written to {args.markdown}", remedy):
            files.write(args.markdown, to_markdown(report).encode())
    if args.json:
        print_json(to_dict(report))
        return
    table = verdict_table(report)
    print_table(table)
    if not table.rows:
        print(table.title)
    print_table(figures_table(report))
    for remark in remarks_of(report):
        print(remark)


MARK = "<!-- attune gate -->"  # marks a comment, so that a later one replaces it
_MAX_MARKDOWN = 60_000  # characters; GitHub's limit of a comment is 65,536
_HEADLINES = {
    0: "No regression",
    1: "Regression",
    3: "No verdict on some results",
}
_SHOWN = ("simulated_us", "registers", "spill_bytes", "ctas_per_sm", "instructions", "conflicts")


def to_dict(report: GateReport) -> dict[str, Any]:
    """Return plain data; `verdicts` is the list for other programs."""
    return {
        "base": report.base,
        "head": report.head,
        "exit_code": report.exit_code,
        "verdicts": [
            {
                "kernel": kernel,
                "problem": problem.label() if problem is not None else None,
                "gpu": gpu or None,
                "verdict": str(each.verdict),
                "what": each.what,
                "regression": each.is_regression,
            }
            for kernel, problem, gpu, each in report.verdicts
        ],
        "figures": [
            {
                "kernel": row.kernel,
                "problem": row.problem.label(),
                "gpu": row.gpu,
                "before": row.before.figures.as_dict() if row.before.figures else None,
                "after": row.after.figures.as_dict() if row.after.figures else None,
            }
            for kernel in report.kernels
            for row in kernel.rows
        ],
        "unchanged": list(report.unchanged),
        "remarks": list(remarks_of(report)),
        "threshold": {
            "simulated": report.settings.thresholds.simulated,
            "counted": dict(report.settings.thresholds.counted),
            "recorded_pairs": default_threshold().pairs,
            "error_bound": default_threshold().error_bound,
        },
    }


def verdict_table(report: GateReport) -> Table:
    """Return one row for each kernel, problem and GPU, and for findings on a kernel as a whole."""
    rows: list[tuple[object, ...]] = []
    for kernel in report.kernels:
        for each in kernel.findings:
            rows.append((kernel.kernel, "–", "–", str(each.verdict), each.what))
        for row in kernel.rows:
            verdicts = dict.fromkeys(str(f.verdict) for f in row.findings)
            what = "; ".join(f.what for f in row.findings)
            rows.append((row.kernel, row.problem.label(), row.gpu, ", ".join(verdicts), what))
    for budget, findings in report.budgets:
        for each in findings:
            where = (budget.kernel, budget.problem.label(), budget.gpu)
            rows.append((*where, str(each.verdict), each.what))
    columns = ("kernel", "problem", "GPU", "verdict", "what")
    title = f"{report.base} → {report.head}: {headline(report)}"
    return Table(title, columns, tuple(rows))


def headline(report: GateReport) -> str:
    """Return the report's result in one sentence."""
    if not report.kernels and not any(f for _, f in report.budgets):
        return f"no kernel changed ({len(report.unchanged)} compared)."
    regressions = [entry for entry in report.verdicts if entry[3].is_regression]
    kernels = list(dict.fromkeys(kernel for kernel, *_ in regressions))
    changed = f"{len(report.kernels)} changed, {len(report.unchanged)} unchanged"
    if kernels:
        return f"{_HEADLINES[1]} in {', '.join(kernels)} ({changed})."
    return f"{_HEADLINES[report.exit_code]} ({changed})."


def remarks_of(report: GateReport) -> tuple[str, ...]:
    """Return remarks on how to read the verdicts."""
    of_kernels = [f"{k.kernel}: {remark}" for k in report.kernels for remark in k.remarks]
    remarks = [*of_kernels, *report.remarks]
    if any(k.rows for k in report.kernels):
        remarks.append(f"Simulated times are predictions. {_threshold(report)}")
    return tuple(remarks)


def to_markdown(report: GateReport) -> str:
    """Return a comment: the verdicts, then all figures, folded."""
    table = verdict_table(report)
    icon = {0: "✅", 1: "❌"}.get(report.exit_code, "⚠️")
    lines = [MARK, f"### {icon} Attune: {_escaped(headline(report))}", ""]
    lines += [f"`{_escaped(report.base)}` → `{_escaped(report.head)}`", ""]
    if table.rows:
        escaped = Table("", table.columns, tuple(tuple(map(_escaped, r)) for r in table.rows))
        lines += [as_markdown(escaped), ""]
    for kernel in report.kernels:
        lines += _folded(kernel)
    lines += [f"- {_escaped(remark)}" for remark in remarks_of(report)]
    text = "\n".join(lines) + "\n"
    if len(text) > _MAX_MARKDOWN:
        cut = text[:_MAX_MARKDOWN].rpartition("\n")[0]
        text = f"{cut}\n\n… cut here: `--json` has everything.\n"
    return text


def _folded(kernel: KernelReport) -> Iterable[str]:
    compared = [row for row in kernel.rows if row.after.figures and row.before.figures]
    shown = [r for r in compared if r.before.code != r.after.code]
    if not shown:
        return ()
    summary = f"<summary>Figures of {_escaped(kernel.kernel)}, before → after</summary>"
    return ("<details>", summary, "", as_markdown(_figures(shown)), "", "</details>", "")


def _figures(rows: Sequence[Row]) -> Table:
    columns = ("problem", "GPU", *(LABELS[name] for name in LABELS))
    lines = []
    for row in rows:
        cells = [_change(row, name) for name in LABELS]
        lines.append((_escaped(row.problem.label()), row.gpu, *cells))
    return Table("", columns, tuple(lines))


def figures_table(report: GateReport) -> Table:
    """Return the main figures of the rows whose code differs."""
    rows = [
        (row.kernel, row.problem.label(), row.gpu, *(_change(row, name) for name in _SHOWN))
        for kernel in report.kernels
        for row in kernel.rows
        if row.before.code != row.after.code
    ]
    columns = ("kernel", "problem", "GPU", *(LABELS[name] for name in _SHOWN))
    return Table("Figures, before → after", columns, tuple(rows))


def _change(row: Row, name: str) -> str:
    before, after = (
        None if side.figures is None else getattr(side.figures, name)
        for side in (row.before, row.after)
    )
    first, second = figure_text(name, before), figure_text(name, after)
    return first if first == second else f"{first} → {second}"


def _threshold(report: GateReport) -> str:
    chosen, derived = report.settings.thresholds.simulated, default_threshold()
    if chosen == derived.share:
        return str(derived)
    return f"The settings give a verdict from {chosen:.1%} on. {derived}"


def _escaped(text: object) -> str:
    """Escape untrusted text of a change: no markup, no mention, no new row."""
    plain = " ".join(str(text).split())
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|")):
        plain = plain.replace(character, entity)
    return plain.replace("`", "'").replace("@", "@\u200b").replace("[", "\\[").replace("]", "\\]")
