"""`selfcheck`: what works on this machine, for the first minute on it and for a report to send."""

from __future__ import annotations

import argparse
import textwrap
from dataclasses import asdict

from engine.cli.output import print_json
from engine.environment import collect_environment
from engine.selfcheck import State, selfcheck

_WIDTH = 100
_INDENT = 36


def run_selfcheck(args: argparse.Namespace) -> int:
    """Exit code 1 when a check failed; what is not possible here is no failure."""
    results = []
    for result in selfcheck(args.gpu):
        results.append(result)
        if not args.json:
            head = f"{result.name:<15} {result.state:<19} "
            print(
                textwrap.fill(
                    result.sentence,
                    _WIDTH,
                    initial_indent=head,
                    subsequent_indent=" " * _INDENT,
                    break_long_words=False,
                    break_on_hyphens=False,
                ),
                flush=True,
            )
    failed = [result.name for result in results if result.state is State.FAILED]
    if args.json:
        print_json(
            {
                "ok": not failed,
                "checks": [asdict(result) for result in results],
                "environment": collect_environment(),
            }
        )
    else:
        print(f"\nFailed: {', '.join(failed)}." if failed else "\nNothing failed.")
    return 1 if failed else 0
