"""`predictions`: every prediction beside the time that was taken later."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import Any

from engine.cli.output import print_json, print_table


def add_parser(commands: Any) -> None:
    p = commands.add_parser(
        "predictions", help="how close the model's predictions were to the times measured later"
    )
    formats = p.add_mutually_exclusive_group()
    formats.add_argument("--json", action="store_true", help="print one JSON object")
    formats.add_argument("--csv", action="store_true", help="print the scores as CSV")
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from engine.records.encoding import encode
    from engine.records.predictions import predictions
    from engine.sessions.known_times import KnownTimes
    from engine.sessions.ledger import ledger_table, score
    from engine.table import csv_text

    ledger = score(predictions(), KnownTimes().all())
    table = ledger_table(ledger)
    if args.json:
        scores = [
            asdict(s.prediction)
            | {
                "problem": encode(s.prediction.problem),
                "time": asdict(s.time.latency),
                "session": s.time.session,
                "ratio": s.ratio,
                "inside": s.is_inside,
                "counts": s.counts,
                "remark": s.remark,
            }
            for s in ledger.scores
        ]
        print_json({"reason": ledger.reason, "waiting": ledger.waiting, "scores": scores})
    elif args.csv:
        sys.stdout.write(csv_text(table.frame()))
    else:
        print_table(table)
    return 0
