"""Failures and warnings of unmodified kernels over FlashAttention's test shapes; none is expected.

    python tests/bench/bench_false_alarms.py                 # all variants, shapes up to 256
    python tests/bench/bench_false_alarms.py --max-seqlen 1024 --variants v08 --every 1
    python tests/bench/bench_false_alarms.py --max-seqlen 2048 --one-each --min-seqlen 300
    python tests/bench/bench_false_alarms.py --one-each --ordinary --lse

Sequence lengths and head dimensions are those of tests/test_flash_attn.py (Dao-AILab), with and
without causal, in both formats; every `--every`-th combination is run for each variant, by the
check build with extreme inputs. `--one-each` makes one run for each variant, lengths and causal, of
one batch and head, with alternating head dimensions and formats. `--ordinary` omits the check
build, `--lse` also checks the LSE of rungs that write it. Prints each alarm, then the number of
runs.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.attention.evaluation import Evaluation
from engine.attention.problem import Direction, Problem
from engine.base.errors import Status
from engine.pipeline.evaluate import Evaluator
from engine.pipeline.request import EvaluationRequest
from kernels.ladder import LADDER
from kernels.variant import Variant

SEQLENS = (
    *((1, 239), (3, 799), (127, 512), (127, 513), (113, 203), (128, 217), (113, 211), (108, 256)),
    *((256, 512), (1023, 1024)),
    *((n, None) for n in (97, 113, 128, 200, 256, 257, 384, 512, 768, 1023, 1024, 1025, 2048)),
)
HEAD_DIMS = (32, 64, 96, 128)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--variants", nargs="*", default=[v.id for v in LADDER.every()])
    p.add_argument("--max-seqlen", type=int, default=256)
    p.add_argument("--min-seqlen", type=int, default=1, help="of queries or keys")
    p.add_argument("--every", type=int, default=7)
    p.add_argument("--one-each", action="store_true", help="one run for all lengths and causal")
    p.add_argument("--ordinary", action="store_true", help="what is run without --check")
    p.add_argument("--lse", action="store_true", help="with LSE, of the rungs that write it")
    p.add_argument("-v", "--verbose", action="store_true", help="print each run")
    args = p.parse_args()
    runs = alarms = skipped = 0
    with Evaluator() as evaluator:
        for variant in (v for v in LADDER.every() if v.id in args.variants):
            direction: Direction = "backward" if variant.is_backward else "forward"
            chosen = [
                replace(problem, direction=direction)
                for problem in problems(args.max_seqlen)
                if max(problem.seqlen, problem.num_keys) >= args.min_seqlen
            ]
            chosen = one_each(variant, chosen) if args.one_each else chosen[:: args.every]
            for problem in chosen:
                if args.lse and "lse" in variant.takes:
                    problem = replace(problem, lse=True)
                if variant.unsupported(problem, variant.default_config()) is not None:
                    skipped += 1
                    continue
                runs += 1
                alarms += _alarm(variant, _evaluate(evaluator, variant, problem, not args.ordinary))
                if args.verbose:
                    print(variant.id, problem.label(), flush=True)
    print(f"{runs} runs, {alarms} alarms; {skipped} shapes that a variant does not take left out")
    sys.exit(1 if alarms else 0)


def problems(max_seqlen: int) -> list[Problem]:
    """Yield the problems, with batch 2 and 3 heads instead of the original 4 × 6."""
    made = []
    for (seqlen, keys), head_dim, causal, dtype in itertools.product(
        SEQLENS, HEAD_DIMS, (False, True), ("float16", "bfloat16")
    ):
        if max(seqlen, keys or 0) <= max_seqlen and not (causal and keys):
            made.append(Problem(2, 3, seqlen, head_dim, causal, dtype, seqlen_kv=keys))
    return made


def one_each(variant: Variant, of: list[Problem]) -> list[Problem]:
    """Yield one problem per lengths and causal: the first that the variant supports."""
    groups: dict[tuple[int, int, bool], list[Problem]] = defaultdict(list)
    for problem in of:
        group = groups[problem.seqlen, problem.num_keys, problem.causal]
        group.append(replace(problem, batch=1, num_heads=1, num_heads_kv=1))
    turn = LADDER.every().index(variant)
    chosen = []
    for number, group in enumerate(groups.values()):
        config = variant.default_config()
        taken = [p for p in group if variant.unsupported(p, config) is None] or group
        chosen.append(taken[(turn + number) % len(taken)])
    return chosen


def _evaluate(evaluator: Evaluator, variant: Variant, problem: Problem, check: bool) -> Evaluation:
    request = EvaluationRequest(variant.id, problem, backend="cpu", check=check, timeout_s=300.0)
    return evaluator.evaluate(request).evaluation


def _alarm(variant: Variant, evaluation: Evaluation) -> bool:
    correctness = evaluation.correctness
    if evaluation.status is Status.PASSED and correctness is not None and not correctness.warnings:
        return False
    why = correctness.warnings if evaluation.status is Status.PASSED and correctness else ()
    print(f"{variant.id} {evaluation.problem.label()}: {evaluation.status}: {evaluation.reason}")
    for warning in why:
        print(f"    {warning}")
    sys.stdout.flush()
    return True


if __name__ == "__main__":
    main()
