"""`predictions`: every prediction beside the time that was taken later."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass

from engine.base.table import csv_text
from engine.cli.output import print_json, print_table
from engine.history.history import predictions
from engine.schema import encode
from engine.sessions.known_times import KnownTimes
from engine.sessions.ledger import ledger_table, score


@dataclass(frozen=True)
class PredictionsOptions:
    """The options of `predictions`."""

    json: bool
    csv: bool


def run(args: PredictionsOptions) -> int:
    ledger = score(predictions(), KnownTimes().all())
    table = ledger_table(ledger)
    if args.json:
        scores = [
            asdict(s.prediction)
            | {
                "config": list(s.prediction.config.items()),
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
