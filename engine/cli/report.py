"""`report`: a session as one HTML file that works offline, or as Markdown."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from engine.errors import UnknownName

_SUFFIXES = {".html": "html", ".htm": "html", ".md": "markdown", ".markdown": "markdown"}


def add_parser(commands: Any) -> None:
    p = commands.add_parser("report", help="write a session as HTML or Markdown")
    p.add_argument("file", metavar="FILE", help="a snapshot file, or its name in the store")
    p.add_argument(
        "-o", "--output", required=True, metavar="report.html", help="report.html or report.md"
    )
    p.add_argument(
        "--no-advice",
        action="store_true",
        help="leave out what to try next (it compiles the ladder's kernels to predict them)",
    )
    p.add_argument(
        "--maps", action="store_true", help="HTML: draw the error maps of results that passed, too"
    )
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    path = Path(args.output)
    kind = _SUFFIXES.get(path.suffix.lower())
    if kind is None:
        raise UnknownName(f"A report is written as .html or .md, not {path.suffix or 'no suffix'}.")
    from engine.sessions.advice import advise
    from engine.sessions.files import open_session, write_file
    from engine.sessions.report import to_html, to_markdown

    snapshot = open_session(args.file)
    advice = () if args.no_advice else advise(snapshot.opened())
    html = kind == "html"
    text = to_html(snapshot, advice, maps=args.maps) if html else to_markdown(snapshot, advice)
    write_file(path, text)
    print(f"Written to {path} ({len(text.encode()) / 1e3:,.0f} kB).")
    return 0
