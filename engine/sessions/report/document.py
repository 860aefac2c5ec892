"""A session as a document: Markdown, or one HTML file that works offline.

The templates are in `templates/`. Every text of the session is escaped for the language it is
written into; only what is marked safe here goes in as it is. The HTML has no script, its charts are
SVG, and its content security policy forbids it to fetch anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from engine.palette import DARK, LIGHT
from engine.records.snapshot import Snapshot
from engine.sessions.advice import Suggestion
from engine.sessions.report.figures import report_figures
from engine.sessions.tables import session_tables

# What Markdown acts on within a line, and what GitHub's flavour would turn into a link.
_MARKDOWN = re.compile(r"[\\`*_{}\[\]()#!|<>~$&]|:(?=//)|(?<=www)\.", re.IGNORECASE)


def to_markdown(snapshot: Snapshot, advice: Sequence[Suggestion] = ()) -> str:
    """The report as Markdown: the same tables as the HTML, without the charts."""
    return render_markdown("report.md", snapshot=snapshot, tables=session_tables(snapshot, advice))


def to_html(snapshot: Snapshot, advice: Sequence[Suggestion] = (), *, maps: bool = False) -> str:
    """The report as one HTML file with its charts, some 50 kB for one evaluation.

    Args:
        maps: error maps of results that passed, too; those of wrong ones are always there.
    """
    templates = html_templates()
    return templates.get_template("report.html").render(
        snapshot=snapshot,
        tables=session_tables(snapshot, advice),
        figures=report_figures(snapshot, templates, maps=maps),
        light=LIGHT,
        dark=DARK,
    )


def render_markdown(template: str, **values: Any) -> str:
    """A Markdown template with its values escaped."""
    return _markdown_templates().get_template(template).render(values).rstrip() + "\n"


def escape_markdown(text: str) -> str:
    """`text` on one line, with nothing in it that Markdown would act on."""
    return _MARKDOWN.sub(r"\\\g<0>", " ".join(text.split()))


@cache
def html_templates() -> Environment:
    """The templates that escape for HTML and SVG."""
    templates = Environment(autoescape=True, **_common())
    templates.filters["px"] = lambda value: f"{value:.1f}".removesuffix(".0")
    return templates


@cache
def _markdown_templates() -> Environment:
    templates = Environment(autoescape=False, finalize=_escaped_unless_safe, **_common())
    templates.filters |= {"fenced": _fenced, "indented": _indented, "cells": _cells}
    return templates


def _common() -> dict[str, Any]:
    return {
        "loader": FileSystemLoader(Path(__file__).parent / "templates"),
        "undefined": StrictUndefined,
        "trim_blocks": True,
        "lstrip_blocks": True,
        "keep_trailing_newline": True,
    }


def _escaped_unless_safe(value: object) -> object:
    """Markdown's counterpart of autoescape: jinja2 calls it with every value it writes."""
    return value if isinstance(value, Markup) else escape_markdown(str(value))


def _fenced(text: str) -> Markup:
    """`text` as it is, in a fence that nothing in it can close."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return Markup(f"{fence}text\n{text}\n{fence}")


def _indented(text: str) -> Markup:
    """`text` as an indented block: no text can close it."""
    return Markup("\n".join(f"    {line}" for line in text.splitlines()))


def _cells(values: Iterable[object]) -> Markup:
    """One row of a table."""
    return Markup(" | ".join(escape_markdown(str(value)) for value in values))
