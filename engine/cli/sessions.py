"""`sessions`: list, search, show, import and remove snapshots. `report`: write one as a
document."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.base.errors import InvalidProblem, UnknownName
from engine.base.schema import WITH_DERIVED, encode
from engine.base.table import Table, csv_text
from engine.cli.options import (
    ConfigOptions,
    FilterOptions,
    Sizes,
    fields_from,
    given_config,
)
from engine.cli.output import print_json, print_table
from engine.history.history import predictions
from engine.sessions.known_times import KnownTimes, ledger_table, score
from engine.sessions.lookup import open_session, write_file
from kernels.variant import DTYPES

if TYPE_CHECKING:
    from engine.sessions.exporters import Format
    from engine.sessions.importers import ImportOptions
    from engine.sessions.snapshot import Outcome, Phase
    from engine.sessions.store import SnapshotInfo

_FILTERS = ("text", "gpu", "variant", "problem", "since", "until")


@dataclass(frozen=True)
class SessionsExportOptions:
    """The options of `sessions export`."""

    file: str
    form: Format
    output: Path
    variant: str | None
    gpu: str | None


def run_export(args: SessionsExportOptions) -> int:
    from engine.base import files
    from engine.sessions.exporters import exported
    from engine.sessions.lookup import check_new, open_session

    check_new(args.output)
    text = exported(open_session(args.file), args.form, args.variant or "", args.gpu or "")
    with files.explain_os_error(
        f"{args.output} cannot be written", "name another file", named=True
    ):
        files.create(args.output, text.encode())
    print(f"Wrote {args.output}.")
    return 0


@dataclass(frozen=True)
class SessionsDecideOptions:
    """The options of `sessions decide`."""

    file: str
    decision: Outcome | None
    why: str
    hours: float | None
    gpu_hours: float | None
    cost: float | None
    budget: float | None
    phase: list[str]


def run_decide(args: SessionsDecideOptions) -> int:
    from engine.base.schema import MAX_SENTENCE, clean_lines
    from engine.sessions.lookup import open_session
    from engine.sessions.session import now
    from engine.sessions.snapshot import Decision, Spent
    from engine.sessions.store import default_store

    snapshot = open_session(args.file)
    changes: dict[str, Any] = {"updated": now()}
    before = snapshot.spent or Spent()
    given = {
        "hours": args.hours,
        "gpu_hours": args.gpu_hours,
        "cost_usd": args.cost,
        "budget_usd": args.budget,
    }
    if any(value is not None for value in given.values()):
        changes["spent"] = before.model_copy(
            update={name: value for name, value in given.items() if value is not None}
        )
    if args.decision is not None:
        changes["decision"] = Decision(
            outcome=args.decision, why=clean_lines(args.why, MAX_SENTENCE)
        )
    elif args.why:
        raise InvalidProblem("--why is the reason of a decision: give --decision, too.")
    if args.phase:
        changes["phases"] = tuple(map(_phase, args.phase))
    if len(changes) == 1:
        raise InvalidProblem(
            "There is nothing to record: give --decision, --hours, --cost or --phase.",
            code="nothing_said",
        )
    print(f"Saved as {default_store().save(snapshot.model_copy(update=changes))}.")
    return 0


def _phase(text: str) -> Phase:
    from engine.base.schema import decode
    from engine.sessions.snapshot import Goal, Phase

    name, colon, aim = text.partition(":")
    target = None
    if not name.strip():
        raise InvalidProblem(f"--phase takes NAME: METRIC VALUE, not {text!r}: a phase has a name.")
    if colon:
        metric, _, value = aim.strip().partition(" ")
        try:
            raw = {"metric": metric, "value": float(value)}
        except ValueError:
            raise InvalidProblem(
                f"--phase takes NAME: METRIC VALUE, for instance tiling: latency_us 400, not "
                f"{text!r}.",
                code="phase_form",
            ) from None
        target = decode(Goal, raw, name="The target of the phase")
    raw = {"name": name.strip(), "target": target.model_dump() if target else None}
    return decode(Phase, raw, name="The phase")


@dataclass(frozen=True)
class SessionsSpentOptions:
    """The options of `sessions spent`."""

    json: bool


def run_spent(args: SessionsSpentOptions) -> int:
    from engine.sessions.store import default_store
    from engine.sessions.tables import spent_table

    store = default_store()
    table = spent_table(store.list(), store.open)
    if args.json:
        print_json([dict(zip(table.columns, row, strict=True)) for row in table.rows])
    elif table.rows:
        print_table(table)
    else:
        print("No session has a recorded cost: attune sessions decide --help.")
    return 0


@dataclass(frozen=True)
class SessionsOptions(FilterOptions):
    """The options of `sessions`."""

    json: bool


def run_list(args: SessionsOptions) -> int:
    from engine.sessions.store import default_store, search

    store = default_store()
    infos = store.list()
    matching = search(infos, **{name: getattr(args, name) for name in _FILTERS})
    if args.json:
        print_json([_info(info) for info in matching])
        return 0
    if not matching:
        filtered = (
            f"none of the {len(infos):,} snapshots matches the filters"
            if infos
            else "import or save one"
        )
        print(f"No snapshots in {store.url}: {filtered}.")
        return 0
    print_table(Table.of(f"Snapshots in {store.url}", map(_record, matching)))
    return 0


def _record(info: SnapshotInfo) -> dict[str, object]:
    s = info.summary
    return {
        "saved, UTC": s.updated[:16].replace("T", " ") if s else "",
        "title": s.title if s else f"damaged: {info.damage}",
        "GPU": ", ".join(s.devices) if s else "",
        "variants": ", ".join(s.variants) if s else "",
        "evaluations": s.num_evaluations if s else None,
        "name": info.name,
    }


def _info(info: SnapshotInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "shipped": info.shipped,
        "size_bytes": info.size_bytes,
        "damage": info.damage,
        "summary": info.summary.model_dump(mode="json") if info.summary else None,
    }


@dataclass(frozen=True)
class SessionsShowOptions:
    """The options of `sessions show`."""

    file: str
    json: bool


def run_show(args: SessionsShowOptions) -> int:
    from engine.sessions.known_times import open_history
    from engine.sessions.lookup import open_session
    from engine.sessions.tables import session_tables

    snapshot = open_session(args.file)
    if args.json:
        print_json(snapshot.model_dump(mode="json", context=WITH_DERIVED))
        return 0
    for table in session_tables(snapshot, history=open_history()):
        print_table(table)
    if snapshot.notes:
        print(snapshot.notes)
    return 0


@dataclass(frozen=True)
class SessionsRemoveOptions:
    """The options of `sessions remove`."""

    name: str


def run_remove(args: SessionsRemoveOptions) -> int:
    from engine.sessions.store import default_store

    print(f"Moved to the trash folder as {default_store().remove(args.name)}.")
    return 0


@dataclass(frozen=True)
class SessionsImportOptions(Sizes, ConfigOptions):
    """The options of `sessions import`."""

    files: list[str]
    variant: str
    gpu: str
    causal: bool
    dtype: str
    title: str
    notes: str


def run_import(args: SessionsImportOptions) -> int:
    from engine.sessions.lookup import read_file, snapshot_of
    from engine.sessions.store import default_store

    store, options = default_store(), _options(args)
    # All files are read before any is stored, so that an invalid file leaves nothing half done.
    snapshots = [
        snapshot_of(read_file(path), name=path.name, options=options)
        for path in map(Path, args.files)
    ]
    for snapshot in snapshots:
        count = len(snapshot.evaluations)
        word = "evaluation" if count == 1 else "evaluations"
        print(f"{count:,} {word} saved as {store.save(snapshot)}")
        if snapshot.log:
            print(snapshot.log)
    return 0


def _options(args: SessionsImportOptions) -> ImportOptions:
    from engine.sessions.importers import ImportOptions

    return ImportOptions(
        **fields_from(args, ImportOptions, "dtype", "config"),
        device=args.gpu,
        num_heads=args.heads,
        dtype=DTYPES[args.dtype],
        config=given_config(args),
    )


_SUFFIXES = {".html": "html", ".htm": "html", ".md": "markdown", ".markdown": "markdown"}


@dataclass(frozen=True)
class ReportOptions:
    """The options of `report`."""

    file: str
    output: str
    no_advice: bool
    maps: bool


def run_report(args: ReportOptions) -> int:
    from engine.choose.advice import advise
    from engine.sessions.known_times import open_history
    from engine.sessions.report import to_html, to_markdown

    path = Path(args.output)
    kind = _SUFFIXES.get(path.suffix.lower())
    if kind is None:
        raise UnknownName(f"A report's name ends in .html or .md, not {path.name!r}.")

    snapshot = open_session(args.file)
    history = open_history()
    advice = () if args.no_advice else advise(snapshot.opened(), history)
    if kind == "html":
        text = to_html(snapshot, advice, history, maps=args.maps)
    else:
        text = to_markdown(snapshot, advice, history)
    write_file(path, text)
    print(f"Written to {path} ({len(text.encode()) / 1e3:,.0f} kB).")
    return 0


@dataclass(frozen=True)
class PredictionsOptions:
    """The options of `predictions`."""

    json: bool
    csv: bool


def run_predictions(args: PredictionsOptions) -> int:
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
                "timed_kernel": s.timed_kernel,
                "ratio": s.ratio if s.is_same_source else None,
                "inside": s.is_inside if s.is_same_source else None,
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
