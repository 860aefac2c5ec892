"""`gate`: a verdict on every kernel that changed between two states, without a GPU.

Exit code 0: fine. 1: a regression. 2: what was given cannot be taken. 3: something could not be
judged, and nothing else is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from engine.base import files
from engine.base.errors import InvalidProblem, ToolMissing
from engine.cli.output import print_json, print_table
from engine.gate.accept import accept
from engine.gate.history import history_of, history_table
from engine.gate.history import to_dict as history_to_dict
from engine.gate.judge import GateReport, judge
from engine.gate.output import figures_table, remarks_of, to_dict, to_markdown, verdict_table
from engine.gate.trees import open_trees, working_tree


def run(args: argparse.Namespace) -> int:
    if args.accept or args.history is not None:
        _refuse_what_is_ignored(args)
        return _accept(args) if args.accept else _history(args)
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


def _refuse_what_is_ignored(args: argparse.Namespace) -> None:
    """InvalidProblem for an option that says nothing beside --accept or --history."""
    mode = "--accept" if args.accept else "--history"
    for name, value in (
        ("BASE", args.base),
        ("--run", args.run_kernels),
        ("--measure", args.measure),
        ("--markdown", args.markdown),
        ("--kernel", args.kernel and not args.accept),
    ):
        if value:
            raise InvalidProblem(f"{mode} goes without {name}: leave one of them out.")


def _accept(args: argparse.Namespace) -> int:
    """Renew budgets; what moved is printed and stands in the commit."""
    renewed = accept(working_tree(Path.cwd()), args.kernel)
    if args.json:
        print_json({"moved": list(renewed.moved), "commit": renewed.commit or None})
        return 0
    for line in renewed.moved:
        print(line)
    if renewed.commit:
        print(f"Written to {renewed.path.name} and committed as {renewed.commit[:7]}.")
    else:
        print("Every budget is what the kernels take.")
    return 0


def _history(args: argparse.Namespace) -> int:
    history = history_of(working_tree(Path.cwd()), args.history, args.last, on_done=_progress(args))
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


def _progress(args: argparse.Namespace) -> Callable[[str], None] | None:
    if args.json or not sys.stderr.isatty():
        return None
    return lambda line: print(f"  {line}", file=sys.stderr)


def _write(report: GateReport, args: argparse.Namespace) -> None:
    if args.markdown is not None:
        remedy = "name another file"
        with files.as_sentence(f"The report cannot be written to {args.markdown}", remedy):
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
