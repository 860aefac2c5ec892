"""Plants a bug and checks the kernel."""

from __future__ import annotations

import functools
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.attention.evaluation import Evaluation
from engine.base.errors import Status
from engine.machine_code.native_library import build_all
from engine.own_kernels.registry import use_kernel
from engine.pipeline.evaluate import Evaluator
from engine.pipeline.request import EvaluationRequest
from kernels.ladder import by_id
from kernels.variant import KERNELS_DIR
from planted_bugs import algorithm, execution, fusion, hopper, instructions, memory
from planted_bugs.anchors import replaced, spans
from planted_bugs.mutation import Mutation

OWN_KERNELS = Path(__file__).parents[1] / "own_kernels" / "kernels"
Mode = Literal["plain", "random", "check", "machine code"]
_GPU = "H200"  # every rung runs on it; its machine code is executed
MUTATIONS = (
    *algorithm.MUTATIONS,
    *fusion.MUTATIONS,
    *memory.MUTATIONS,
    *execution.MUTATIONS,
    *instructions.MUTATIONS,
    *hopper.MUTATIONS,
)


@dataclass(frozen=True)
class Outcome:
    """Result of one mode for a mutation."""

    found: bool
    named: bool  # one of the words, or the changed line
    text: str
    warned: bool = False  # found only by a warning
    refused: bool = False  # by the compiler


def cases() -> list[tuple[str, Mutation]]:
    """Return (variant, mutation) in the order of the tables."""
    return [(variant, mutation) for mutation in MUTATIONS for variant in mutation.variants]


def is_own(variant: str) -> bool:
    """Return whether it is a file of `tests/own_kernels/kernels`, not of the ladder."""
    return variant.endswith(".cu")


def plant(mutation: Mutation, variant: str, folder: Path) -> tuple[Path, tuple[str, ...]]:
    """Write the mutated kernel with its headers.

    Returns:
        Its source, and the places `file:line` that were changed.
    """
    source = source_of(variant)
    if is_own(variant):
        if (description := source.with_suffix(".attune.toml")).is_file():
            shutil.copy(description, folder)
        shutil.copytree(OWN_KERNELS / "include", folder / "include", dirs_exist_ok=True)
    for header in KERNELS_DIR.glob("*.cuh"):
        shutil.copy(header, folder)
    shutil.copy(source, folder)
    changed = folder / (mutation.header or source.name)
    text, lines = mutated(mutation, changed.read_text(encoding="utf-8"))
    changed.write_text(text, encoding="utf-8")
    return folder / source.name, tuple(f"{changed.name}:{line}" for line in lines)


def source_of(variant: str) -> Path:
    """Return the source of an own kernel by its file's name, or of a rung by its id."""
    return OWN_KERNELS / variant if is_own(variant) else by_id(variant).source


def mutated(mutation: Mutation, original: str) -> tuple[str, tuple[int, ...]]:
    """Return the file's text with the bug, and the changed lines.

    A bug in what a feature adds is planted in the text as it stands.
    """
    as_it_stands = original if spans(original, mutation.old) else plain(original)
    return replaced(as_it_stands, mutation.old, mutation.new, mutation.nth)


# The values of the macros of `features.cuh` in plain attention, and what is removed there.
_PLAIN = (
    (r"^#define [VO]_HEAD .*\n", ""),
    (r"\bO_HEAD\b", "q_head"),
    (r"\bV_HEAD\b", "kv_head"),
    (r"=  // and its K and V\n\s*KV_BEGIN\([^;]*;", "= kv_index * seqlen_kv * HEAD_DIM;"),
    (r"KV_BEGIN\(kv_index, [^;]*\);", "kv_index * seqlen_kv * HEAD_DIM;"),
    (r"Q_BEGIN\(q_index, blockIdx.y\)", "q_index * seqlen * HEAD_DIM"),
    (r" ROW_PARAMETER| *\n? *ROW_GIVEN\([A-Z_]+\)", ""),
    (r"\b(?:Q_ROW|KV_ROW|ROW_ELEMENTS|HEAD_DIM_V)\b", "HEAD_DIM"),
    (r"load_tile<(\w+), HEAD_DIM>", r"load_tile<\1>"),
    (r"template <int ROWS, int COLUMNS>", "template <int ROWS, int COLUMNS = HEAD_DIM>"),
    (r"template <int COLUMNS>", "template <int COLUMNS = HEAD_DIM>"),
    (r"swizzled<(?:COLUMNS|HEAD_DIM)>\(", "swizzled("),
    (r"^#define SOURCE_TILE .*", "#define TILE (BLOCK_N * HEAD_DIM)"),
    (r"\bSOURCE_TILE\b", "TILE"),
    (r"NUM_KEYS\s*\);", "NUM_KEYS);"),
    (r"^ *OWN_LENGTHS\([^;]*;\n", ""),
    (r"^ *if \(HAS_VARLEN .*\n", ""),
    (
        r"IS_VISIBLE\(\s*key, POSITION_OF\(query\)\)",
        "key < seqlen_kv && (!IS_CAUSAL || key <= query)",
    ),
    (
        r"(last_query / group.*;\n.*)END_OF_KEYS\(end\)",
        r"\1IS_CAUSAL ? min(seqlen_kv, end) : seqlen_kv",
    ),
    (
        r"END_OF_KEYS\((?:end|POSITION_OF\(m0 \+ BLOCK_M\))\)",
        "IS_CAUSAL ? min(seqlen_kv, m0 + BLOCK_M) : seqlen_kv",
    ),
    (r"END_SEEN_BY_ALL\(begin\)", "(IS_CAUSAL ? min(seqlen_kv, m0 + 1) : seqlen_kv)"),
    (r"\(end - begin \+ BLOCK_N - 1\)", "(seqlen_kv + BLOCK_N - 1)"),
    (r"FIRST_KEY\((?:begin|POSITION_OF\(m0\))\) / BLOCK_N \* BLOCK_N", "0"),
    (r"int n0 = kv_begin;", "int n0 = 0;"),
    (r"with_sink\(((?:[^(),]|\([^()]*\))+),[^;]*\);", r"\1;"),
    (
        r"const float l = (row_sum.*);\n( *)const float inv_l = 1.0f / l;",
        r"const float inv_l = 1.0f / \1;",
    ),
    (r"SCALED_MAXIMUM\((\S+), scale_log2\)", r"\1 * scale_log2"),
    (r"NUM_QUERIES", "seqlen"),
    (r"NUM_KEYS", "seqlen_kv"),
)


@functools.lru_cache(maxsize=64)
def plain(text: str) -> str:
    """Return a kernel's text for plain attention, in which most bugs are planted."""
    for macro, meaning in _PLAIN:
        text = re.sub(macro, meaning, text, flags=re.MULTILINE)
    return text


def look(
    evaluator: Evaluator, mutation: Mutation, variant: str, mode: Mode, folder: Path
) -> Outcome:
    """Evaluate the mutated kernel in one mode, on its problems until it is found."""
    if mode == "machine code":
        build_all()  # else a failed build of the emulator would count as found
    source, places = plant(mutation, variant, folder)
    name = use_kernel(source).id if is_own(variant) else variant
    outcome = Outcome(False, False, "")
    for problem in mutation.problems(variant):
        request = EvaluationRequest(
            name,
            problem,
            mutation.config,
            gpu=_GPU if mode == "machine code" else None,
            backend="machine-code" if mode == "machine code" else "cpu",
            check=mode in ("check", "machine code"),
            schedule="random" if mode == "random" else "in_order",
            timeout_s=60.0,  # else a busy machine would count as a hang that was found
        )
        evaluation = evaluator.evaluate(request, source=source).evaluation
        if mode == "machine code" and evaluation.status is Status.SKIPPED:
            return Outcome(False, False, evaluation.reason)  # code that is not executed here
        if (outcome := _outcome(evaluation, mutation, places)).found:
            return outcome
    return outcome


def _outcome(evaluation: Evaluation, mutation: Mutation, places: tuple[str, ...]) -> Outcome:
    correctness = evaluation.correctness
    said = [evaluation.reason]
    warned = False
    if evaluation.status is Status.SKIPPED:
        raise AssertionError(f"{evaluation.variant} cannot show {mutation.name}: {said[0]}")
    if evaluation.status is Status.PASSED:
        said = list(correctness.warnings) if correctness is not None else []
        warned = bool(said)
    elif correctness is not None:
        said += [f"{f.sentence} ({f.place})" for f in correctness.findings]
    text = " | ".join(said)
    named = mutation.is_named(text, places)
    refused = evaluation.status is Status.COMPILE_ERROR
    return Outcome(evaluation.status is not Status.PASSED or warned, named, text, warned, refused)
