"""Plant every bug of tests/planted_bugs; print which mode finds it, and its message.

    python tests/bench/bench_mutations.py                    # all, by --check
    python tests/bench/bench_mutations.py --modes plain random check --part 2/8
    python tests/bench/bench_mutations.py --only "tail mask" --variants v08 -v

A mutation is *named* if the message has one of the words that point at it, or the changed line. The
last lines count the found and named ones of each mode; those found only by a warning count as found
and are listed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from planted_bugs import Mode, Mutation, Outcome, cases, look

from engine.pipeline.evaluate import Evaluator

MODES: tuple[Mode, ...] = ("plain", "random", "check", "machine code")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--modes", nargs="+", choices=MODES, default=["check"])
    p.add_argument("--part", default="1/1", help="K/N: every N-th case from the K-th on")
    p.add_argument("--only", default="", help="only mutations whose name holds this")
    p.add_argument("--variants", nargs="*", default=[])
    p.add_argument("-v", "--verbose", action="store_true", help="print all that is said")
    p.add_argument("--jsonl", type=Path, help="append one line a case")
    args = p.parse_args()
    part, parts = map(int, args.part.split("/"))
    chosen = [
        (variant, mutation)
        for variant, mutation in cases()
        if args.only in mutation.name and (not args.variants or variant in args.variants)
    ][part - 1 :: parts]
    results: list[tuple[str, Mutation, dict[Mode, Outcome]]] = []
    with Evaluator() as evaluator:
        for variant, mutation in chosen:
            begin = time.perf_counter()
            outcome = {mode: _look(evaluator, mutation, variant, mode) for mode in args.modes}
            results.append((variant, mutation, outcome))
            _print(variant, mutation, outcome, time.perf_counter() - begin, args.verbose)
            if args.jsonl:
                _append(args.jsonl, variant, mutation, outcome)
    _summary(results, args.modes)


def _look(evaluator: Evaluator, mutation: Mutation, variant: str, mode: Mode) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="attune-mutation-") as folder:
        return look(evaluator, mutation, variant, mode, Path(folder))


def _print(
    variant: str, mutation: Mutation, outcome: dict[Mode, Outcome], took_s: float, verbose: bool
) -> None:
    finders = [mode for mode, s in outcome.items() if s.found]
    last = list(outcome.values())[-1]
    state = "named" if last.named else "found" if last.found else "NOT FOUND"
    if last.warned:
        state += " (warning)"
    print(f"{variant} {mutation.name}: {state}, by {' '.join(finders) or 'none'}, {took_s:.1f} s")
    if verbose or (last.found and not last.named):
        for sentence in last.text.split(" | "):
            print(f"    {sentence}")
    sys.stdout.flush()


def _append(path: Path, variant: str, mutation: Mutation, outcome: dict[Mode, Outcome]) -> None:
    line = {"variant": variant, "mutation": mutation.name} | {
        mode: {"found": s.found, "named": s.named, "warned": s.warned, "text": s.text}
        for mode, s in outcome.items()
    }
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _summary(results: list[tuple[str, Mutation, dict[Mode, Outcome]]], modes: list[Mode]) -> None:
    total = len(results)
    for mode in modes:
        outcome = [s[mode] for _, _, s in results]
        found, named = sum(s.found for s in outcome), sum(s.found and s.named for s in outcome)
        warned = sum(s.warned for s in outcome)
        share = f"{named / found:.0%}" if found else "none"
        print(
            f"{mode}: found {found} of {total} ({warned} by a warning alone), named or located "
            f"{named}, {share} of those found"
        )
        for variant, mutation, s in results:
            if not s[mode].found:
                print(f"    not found: {variant} {mutation.name}")


if __name__ == "__main__":
    main()
