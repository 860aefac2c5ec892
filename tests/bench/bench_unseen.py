"""Plant the bugs of tests/planted_bugs/unseen/; print found, and named by cause, for each kind.

    python tests/bench/bench_unseen.py                       # all bugs, by one --check each
    python tests/bench/bench_unseen.py --kinds mbarrier wgmma -v
    python tests/bench/bench_unseen.py --legal               # legal changes: nothing may be said

A bug is found if the check fails or warns, and named if the message has one of the words listed for
its cause; the changed line alone does not name it. A change that does not compile is not counted.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from planted_bugs import Outcome, look
from planted_bugs.fifth import FIFTH
from planted_bugs.fresh import FRESH
from planted_bugs.held_out import HELD_OUT
from planted_bugs.sixth import SIXTH
from planted_bugs.thin import THIN
from planted_bugs.unseen import LEGAL, UNSEEN, Unseen

from engine.pipeline.evaluate import Evaluator


def main(argv: Sequence[str] | None = None, unseen: Sequence[Unseen] = UNSEEN) -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--kinds", nargs="*", default=[])
    p.add_argument("--variants", nargs="*", default=[])
    p.add_argument("--only", default="", help="only changes whose name holds this")
    p.add_argument("--held-out", action="store_true", help="the second set of bugs")
    p.add_argument("--thin", action="store_true", help="the third: pages, descriptors, boxes, LSE")
    p.add_argument("--fresh", action="store_true", help="the fourth: all kinds, all rungs")
    p.add_argument("--fifth", action="store_true", help="the fifth: features, own kernels")
    p.add_argument("--sixth", action="store_true", help="the sixth: all kinds, all rungs")
    p.add_argument("--legal", action="store_true", help="the legal changes in place of the bugs")
    p.add_argument("--part", default="1/1", help="K/N: every N-th case from the K-th on")
    p.add_argument("-v", "--verbose", action="store_true", help="print all that is said")
    p.add_argument("--jsonl", type=Path, help="append one line a case")
    args = p.parse_args(argv)
    part, parts = map(int, args.part.split("/"))
    table = LEGAL if args.legal else HELD_OUT if args.held_out else THIN if args.thin else unseen
    table = FIFTH if args.fifth else FRESH if args.fresh else SIXTH if args.sixth else table
    chosen = [
        mutation
        for mutation in table
        if args.only in mutation.name
        and (not args.kinds or mutation.kind in args.kinds)
        and (not args.variants or mutation.variants[0] in args.variants)
    ][part - 1 :: parts]
    results: list[tuple[Unseen, Outcome]] = []
    with Evaluator() as evaluator:
        for mutation in chosen:
            begin = time.perf_counter()
            with tempfile.TemporaryDirectory(prefix="attune-unseen-") as folder:
                outcome = look(evaluator, mutation, mutation.variants[0], "check", Path(folder))
            if outcome.refused and not args.legal:
                outcome = replace(outcome, found=False, named=False)
            results.append((mutation, outcome))
            _print(mutation, outcome, time.perf_counter() - begin, args.verbose)
            if args.jsonl:
                line = {"kind": mutation.kind, "variant": mutation.variants[0]}
                line |= {"name": mutation.name, "found": outcome.found, "named": outcome.named}
                line |= {"warned": outcome.warned, "text": outcome.text}
                with args.jsonl.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")
    if args.legal:
        alarms = sum(outcome.found for _, outcome in results)
        print(f"{len(results)} legal changes, {alarms} alarms")
        sys.exit(1 if alarms else 0)
    _summary(results)


def _print(mutation: Unseen, outcome: Outcome, took_s: float, verbose: bool) -> None:
    state = "named" if outcome.named else "found" if outcome.found else "NOT FOUND"
    if outcome.refused:
        state = "DOES NOT COMPILE"
    if outcome.warned:
        state += " (warning)"
    print(f"{mutation.variants[0]} {mutation.kind}: {mutation.name}: {state}, {took_s:.1f} s")
    if verbose or outcome.refused or (outcome.found and not outcome.named):
        for sentence in outcome.text.split(" | "):
            print(f"    {sentence}")
    sys.stdout.flush()


def _summary(results: list[tuple[Unseen, Outcome]]) -> None:
    by_kind: dict[str, list[Outcome]] = defaultdict(list)
    for mutation, outcome in results:
        by_kind[mutation.kind].append(outcome)
        by_kind["all"].append(outcome)
    all_of_them = by_kind.pop("all", [])
    print("| kind | bugs | found | named by cause |")
    print("| --- | --- | --- | --- |")
    for kind, outcome in [*by_kind.items(), ("all", all_of_them)]:
        found = sum(s.found for s in outcome)
        named = sum(s.found and s.named for s in outcome)
        print(f"| {kind} | {len(outcome)} | {found} | {named} |")
    if all_of_them:
        total = len(all_of_them)
        found = sum(s.found for s in all_of_them)
        named = sum(s.found and s.named for s in all_of_them)
        print(f"found {found / total:.1%}, named by cause {named / total:.1%}")


if __name__ == "__main__":
    main()
