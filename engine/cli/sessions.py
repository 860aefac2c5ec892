"""`sessions`: list, search, show, import and remove snapshots."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.cli.options import DTYPES, add_config, add_dtype, add_sizes, config_from, day
from engine.cli.output import print_json, print_table

if TYPE_CHECKING:
    from engine.sessions.importers import ImportOptions
    from engine.sessions.store.store import SnapshotInfo

_FILTERS = {
    "text": "in name, title, hypothesis or notes",
    "gpu": "part of a GPU's name",
    "variant": "part of a variant's name",
    "problem": 'words of a problem, for instance "S128 D64"',
    "since": "saved on or after this day, UTC: 2026-11-21",
    "until": "saved on or before this day, UTC",
}


def add_parser(commands: Any) -> None:
    p = commands.add_parser("sessions", help="list, search, show, import and remove snapshots")
    _add_filters(p)
    p.set_defaults(run=_run_list)
    actions = p.add_subparsers(dest="action", metavar="action")
    listing = actions.add_parser("list", help="the snapshots that match every filter (the default)")
    _add_filters(listing, default=argparse.SUPPRESS)
    show = actions.add_parser("show", help="one snapshot: what it is, and its evaluations")
    show.add_argument("file", metavar="FILE", help="a path, or a name of the list")
    show.add_argument("--json", action="store_true", help="print the snapshot's JSON object")
    show.set_defaults(run=_run_show)
    remove = actions.add_parser("remove", help="move a snapshot to the trash folder")
    remove.add_argument("name", metavar="NAME")
    remove.set_defaults(run=_run_remove)
    _add_import(actions)


def _add_filters(p: argparse.ArgumentParser, **default: Any) -> None:
    for name, meaning in _FILTERS.items():
        kind = day if name in ("since", "until") else str
        p.add_argument(f"--{name}", type=kind, help=meaning, **(default or {"default": ""}))
    p.add_argument("--json", action="store_true", help="print one JSON list", **default)


def _add_import(actions: Any) -> None:
    p = actions.add_parser(
        "import",
        help="add snapshots to the store, or what other tools measured: CSV, Kernel Tuner, "
        "NVBench, Nsight Compute CSV",
    )
    p.add_argument("files", nargs="+", metavar="FILE")
    where = p.add_argument_group("what a file of another tool may leave out")
    where.add_argument("--variant", default="", help="the kernel that was measured")
    where.add_argument("--gpu", default="", help="the GPU it was measured on")
    add_sizes(where)
    where.add_argument("--causal", action="store_true", help="causal mask")
    add_dtype(where)
    where.add_argument("--title", default="", help="of the session")
    where.add_argument("--notes", default="", help="of the session")
    add_config(where)
    p.set_defaults(run=_run_import)


def _run_list(args: argparse.Namespace) -> int:
    from engine.sessions.store.store import default_store, search

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
    columns = ("saved, UTC", "title", "GPU", "variants", "evaluations", "name")
    print_table(f"Snapshots in {store.url}", columns, map(_row, matching))
    return 0


def _row(info: SnapshotInfo) -> tuple[object, ...]:
    s = info.summary
    if s is None:
        return "", f"damaged: {info.damage}", "", "", None, info.name
    when = s.updated[:16].replace("T", " ")
    gpus, variants = ", ".join(s.devices), ", ".join(s.variants)
    return when, s.title, gpus, variants, s.num_evaluations, info.name


def _info(info: SnapshotInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "shipped": info.shipped,
        "size_bytes": info.size_bytes,
        "damage": info.damage,
        "summary": info.summary.model_dump(mode="json") if info.summary else None,
    }


def _run_show(args: argparse.Namespace) -> int:
    from engine.sessions.files import open_session
    from engine.sessions.tables import session_tables

    snapshot = open_session(args.file)
    if args.json:
        print_json(snapshot.model_dump(mode="json"))
        return 0
    for table in session_tables(snapshot):
        print_table(table.title, table.columns, table.rows)
    if snapshot.notes:
        print(snapshot.notes)
    return 0


def _run_remove(args: argparse.Namespace) -> int:
    from engine.sessions.store.store import default_store

    print(f"Moved to the trash folder as {default_store().remove(args.name)}.")
    return 0


def _run_import(args: argparse.Namespace) -> int:
    from engine.sessions.files import read_file, snapshot_of
    from engine.sessions.store.store import default_store

    store, options = default_store(), _options(args)
    # Every file is read before the first is kept: a bad one leaves nothing half done.
    snapshots = [
        snapshot_of(read_file(path), name=path.name, options=options)
        for path in map(Path, args.files)
    ]
    for snapshot in snapshots:
        print(f"{len(snapshot.evaluations):,} evaluations kept as {store.save(snapshot)}")
        if snapshot.log:
            print(snapshot.log)
    return 0


def _options(args: argparse.Namespace) -> ImportOptions:
    from engine.sessions.importers import ImportOptions

    return ImportOptions(
        variant=args.variant,
        device=args.gpu,
        batch=args.batch,
        num_heads=args.heads,
        seqlen=args.seqlen,
        head_dim=args.head_dim,
        causal=args.causal,
        dtype=DTYPES[args.dtype],
        config=config_from(args),
        title=args.title,
        notes=args.notes,
    )
