"""`report`: a session as one HTML file that works offline, or as Markdown."""

from __future__ import annotations

import argparse
from pathlib import Path

from engine.base.errors import UnknownName
from engine.sessions.advice import advise
from engine.sessions.files import open_session, write_file
from engine.sessions.known_times import open_history
from engine.sessions.report import to_html, to_markdown

_SUFFIXES = {".html": "html", ".htm": "html", ".md": "markdown", ".markdown": "markdown"}


def run_report(args: argparse.Namespace) -> int:
    path = Path(args.output)
    kind = _SUFFIXES.get(path.suffix.lower())
    if kind is None:
        raise UnknownName(f"A report is written as .html or .md: name it so, not {path.name!r}.")

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
