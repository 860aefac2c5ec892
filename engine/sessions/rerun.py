"""Repeat a snapshot's evaluations on this machine, or count the machine code of its sources.

Only `their_source` writes a snapshot's own kernel source to a file for a compiler. Callers that run
the result must first show the source to the user and get consent. To count, sources are compiled in
processes with limits and are not executed.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from engine.attention.config import find_variant, variant_from
from engine.attention.evaluation import CodeCounts, Evaluation
from engine.base.errors import AttuneError, CompileError, InvalidKernel, SnapshotError, UnknownName
from engine.cuda_source.sources import read_source
from engine.devices import find_device
from engine.history.known_time import timed_device
from engine.model.kernel import Kernel, variant_sources
from engine.pipeline.request import BackendChoice, EvaluationRequest
from engine.sessions.compare.comparison import SessionComparison
from engine.sessions.compare.pairing import key_of
from engine.sessions.snapshot import Snapshot, Source
from engine.versions.figures import counts_of, variant_of
from engine.versions.workers import DEFAULT_MEMORY_GIB, DEFAULT_SECONDS, Failed, Workers
from kernels.variant import KERNELS_DIR, Variant, feature_of

# Names allowed for headers written beside a source: never a path.
_HEADER = re.compile(r"[A-Za-z0-9_]{1,100}\.(cuh|h)")


@dataclass(frozen=True, slots=True)
class Repeat:
    """One evaluation to repeat. If it cannot be repeated, `why_not` says why and there is no
    request."""

    recorded: Evaluation
    request: EvaluationRequest | None
    why_not: str = ""


def plan_rerun(
    snapshot: Snapshot,
    *,
    only: str = "",
    gpu: str | None = None,
    backend: BackendChoice = "auto",
) -> list[Repeat]:
    """Return what to repeat: the newest evaluation of every variant, config, problem and device.

    Args:
        only: a shell pattern for, or a part of, labels such as `v05 num_splits=4 B1 H1 S128 D64
            fp16 L4`.
        gpu: the target GPU in place of the recorded one.
    """
    newest: dict[object, Evaluation] = {}
    for e in sorted(snapshot.opened(), key=lambda e: e.when):
        newest[(e.variant, tuple(sorted(e.config.items())), e.problem, e.device)] = e
    return [_repeat(e, gpu, backend) for e in newest.values() if _fits(e, only)]


def label(e: Evaluation) -> str:
    """Return the label of an evaluation, for `only` and the progress."""
    config = " ".join(f"{name}={value}" for name, value in sorted(e.config.items()))
    return " ".join(part for part in (e.variant, config, e.problem.label(), e.device) if part)


def _fits(e: Evaluation, only: str) -> bool:
    pattern = only if any(mark in only for mark in "*?[") else f"*{only}*"
    return fnmatch.fnmatchcase(label(e).casefold(), pattern.casefold())


def _repeat(e: Evaluation, gpu: str | None, backend: BackendChoice) -> Repeat:
    try:
        find_variant(e.variant)
        device = find_device(gpu or e.device).name
    except (UnknownName, InvalidKernel) as error:
        return Repeat(e, None, str(error))
    how = e.execution
    return Repeat(
        e,
        EvaluationRequest(
            variant=e.variant,
            problem=e.problem,
            config=dict(e.config),
            gpu=device,
            backend=backend,
            check=how is not None and how.build == "check",
            schedule=how.schedule if how is not None and how.schedule != "device" else "in_order",
            seed=how.seed if how is not None else 0,
        ),
    )


def source_of(snapshot: Snapshot, evaluation: Evaluation) -> Source | None:
    """Return the kernel source of an evaluation if the snapshot has it."""
    matching = (s for s in snapshot.sources if s.sha256 == evaluation.source_sha256)
    return next(matching, None) if evaluation.source_sha256 else None


def foreign_sources(snapshot: Snapshot, repeats: Iterable[Repeat]) -> list[Source]:
    """Return sources and headers of these evaluations that differ from this machine's."""
    kernels = {}
    folders = {KERNELS_DIR}
    for repeat in repeats:
        source = source_of(snapshot, repeat.recorded) if repeat.request is not None else None
        if source is not None:
            ours = find_variant(repeat.recorded.variant)
            kernels[source.sha256] = (source, ours)
            folders.add(ours.source.parent)
    foreign = [source for source, ours in kernels.values() if _hash_of(ours) != source.sha256]
    for header in headers(snapshot) if kernels else ():
        if header.text not in {our_text(folder / header.name) for folder in folders}:
            foreign.append(header)
    return foreign


def _hash_of(variant: Variant) -> str:
    """Return the SHA-256 of this machine's source; empty if it cannot be read."""
    try:
        return variant_sources(variant).source_sha256
    except CompileError:
        return ""


def headers(snapshot: Snapshot) -> list[Source]:
    """Return the snapshot's headers with plain file names, which may be written beside a kernel."""
    return [s for s in snapshot.sources if _HEADER.fullmatch(s.name)]


def our_text(path: Path) -> str:
    """Return the text of this machine's file; empty if there is none."""
    try:
        return read_source(path)
    except CompileError:
        return ""


def their_source(snapshot: Snapshot, evaluation: Evaluation, folder: Path) -> Path:
    """Write the snapshot's source of an evaluation into `folder`, to be compiled.

    Only plain header names of the snapshot are used as file names.

    Raises:
        SnapshotError: the snapshot has no source for it, or one whose parameters differ from the
            arguments of this version's launch, which would be misinterpreted on a GPU.
    """
    source = source_of(snapshot, evaluation)
    if source is None:
        raise SnapshotError(f"The snapshot holds no source for {evaluation.variant}.")
    subfolder = folder / source.sha256[:16]
    subfolder.mkdir(exist_ok=True)
    for header in headers(snapshot):
        (subfolder / header.name).write_text(header.text, encoding="utf-8")
    path = subfolder / f"{find_variant(evaluation.variant).name}.cu"
    path.write_text(source.text, encoding="utf-8")
    try:
        _check_parameters(source.text, variant_from(path, evaluation.variant))
    except InvalidKernel as error:
        raise SnapshotError(f"The snapshot's source has no valid description: {error}") from None
    return path


def _check_parameters(text: str, variant: Variant) -> None:
    code = re.sub(r"//[^\n]*|/\*.*?(?:\*/|\Z)", "", text, flags=re.DOTALL)
    for launch in variant.passes:
        name = launch.entry.partition("<")[0].rpartition("::")[2].strip()
        definition = re.search(rf"\b{name}\s*\(([^()]*)\)\s*\{{", code)
        # The compiler reports a missing kernel.
        if definition is None:
            continue
        count = definition[1].count(",") + 1
        # A macro may expand to the parameters of a problem's features, which most problems lack.
        features = sum(feature_of(a, variant.takes) is not None for a in launch.args)
        if count not in (len(launch.args), len(launch.args) - features):
            raise SnapshotError(
                f"The snapshot's {launch.entry} of {variant.id} takes {count} arguments and would "
                f"be given {len(launch.args)} here: repeat it with this machine's source.",
                code="argument_count_differs",
            )


@dataclass(frozen=True, slots=True)
class Uncounted:
    """An evaluation of a comparison whose machine code can be counted from its source."""

    session: str
    index: int  # into the snapshot's evaluations
    evaluation: Evaluation


def uncounted(
    comparison: SessionComparison, sessions: Mapping[str, Snapshot]
) -> tuple[Uncounted, ...]:
    """Return evaluations in rows of one GPU without counts whose source is in the snapshot."""
    asked = {
        side
        for row in comparison.rows
        if row.device == row.baseline_device
        for side in (
            (row.session, row.variant, tuple(sorted(row.config.items())), row.problem, row.device),
            (
                row.baseline_session,
                row.baseline_variant,
                tuple(sorted(row.baseline_config.items())),
                row.problem,
                row.device,
            ),
        )
    }
    return tuple(
        Uncounted(name, index, e)
        for name, snapshot in sessions.items()
        for index, e in enumerate(snapshot.evaluations)
        if (name, *key_of(e), timed_device(e)) in asked
        and e.counts is None
        and e.main_pass is not None
        and source_of(snapshot, e) is not None
    )


def count_sources(
    missing: Sequence[Uncounted], sessions: Mapping[str, Snapshot]
) -> dict[tuple[str, int], CodeCounts | str]:
    """Return (session, index) → counts, or a sentence why there are none."""
    found: dict[tuple[str, int], CodeCounts | str] = {}
    tasks: list[tuple[Uncounted, Path]] = []
    with TemporaryDirectory(prefix="attune-compare-") as folder:
        for number, each in enumerate(missing):
            place = Path(folder, str(number))
            place.mkdir()
            try:
                source = their_source(sessions[each.session], each.evaluation, place)
                tasks.append((each, source))
            except AttuneError as error:
                found[each.session, each.index] = _remark(each, str(error))
        workers = Workers(_count, DEFAULT_SECONDS, DEFAULT_MEMORY_GIB)
        results = workers.run([(path, each.evaluation) for each, path in tasks])
    for (each, _), result in zip(tasks, results, strict=True):
        if not isinstance(result, CodeCounts):
            result = _remark(each, result.sentence if isinstance(result, Failed) else result)
        found[each.session, each.index] = result
    return found


def with_counts(
    sessions: Mapping[str, Snapshot], found: Mapping[tuple[str, int], CodeCounts | str]
) -> dict[str, Snapshot]:
    """Return the sessions with the found counts added to their evaluations."""
    together: dict[str, Snapshot] = {}
    for name, snapshot in sessions.items():
        evaluations = list(snapshot.evaluations)
        for index, e in enumerate(evaluations):
            if isinstance(counts := found.get((name, index)), CodeCounts):
                evaluations[index] = replace(e, counts=counts)
        together[name] = snapshot.model_copy(update={"evaluations": tuple(evaluations)})
    return together


def _count(task: tuple[Path, Evaluation]) -> CodeCounts | str:
    """Count one side's instructions; runs in a worker process."""
    path, e = task
    try:
        kernel = Kernel.of(variant_of(path), find_device(e.device), e.config)
        return counts_of(kernel, e.problem)
    except AttuneError as error:
        return str(error)


def _remark(each: Uncounted, why: str) -> str:
    e = each.evaluation
    return f"{e.variant} on {e.problem.label()} of {each.session} is not counted: {why}"
