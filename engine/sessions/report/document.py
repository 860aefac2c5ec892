"""A session as a document: Markdown, or one HTML file that works offline.

Everything from the file is escaped for the language it is written into. The HTML holds one copy of
plotly.js and forbids itself, by its content security policy, to fetch anything.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from importlib.resources import files

from engine.records.snapshot import Snapshot
from engine.sessions.advice import Suggestion
from engine.sessions.report.figures import Figure, report_figures
from engine.sessions.report.tables import Table, report_tables

# What Markdown acts on within a line, and what GitHub's flavour would turn into a link.
_MARKDOWN = re.compile(r"[\\`*_{}\[\]()#!|<>~$&]|:(?=//)|(?<=www)\.", re.IGNORECASE)

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 1400px;
       padding: 0 1rem; color: #1f2430; background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid #d8dce4; padding: .25rem .6rem; text-align: left;
         vertical-align: top; }
td:last-child:not(.n) { min-width: 14rem; }
.n { text-align: right; white-space: nowrap; }
pre { background: #f5f6f8; padding: .8rem; overflow-x: auto; white-space: pre-wrap; }
.remark { color: #5b6372; }
"""
_DRAW = """
for (const data of document.querySelectorAll('script.figure')) {
  const figure = JSON.parse(data.textContent);
  Plotly.newPlot(data.previousElementSibling, figure.data, figure.layout,
                 {displaylogo: false, responsive: true});
}
"""


def to_markdown(snapshot: Snapshot, advice: Sequence[Suggestion] = ()) -> str:
    """The report as Markdown: the same tables as the HTML, without the charts."""
    parts = [f"# {escape_markdown(snapshot.title)}"]
    if snapshot.notes:
        parts.append(_fenced(snapshot.notes))
    for table in report_tables(snapshot, advice):
        parts.append(f"## {table.title}")
        parts.append(_markdown_table(table))
        if table.remark:
            parts.append(table.remark)
    if snapshot.log:
        parts += ["## Log", _fenced(snapshot.log)]
    return "\n\n".join(parts) + "\n"


def to_html(snapshot: Snapshot, advice: Sequence[Suggestion] = ()) -> str:
    """The report as one HTML file with its charts; about 5 MB, most of it plotly.js."""
    title = html.escape(snapshot.title)
    parts = [f"<h1>{title}</h1>"]
    if snapshot.notes:
        parts.append(f"<pre>{html.escape(snapshot.notes)}</pre>")
    parts += [_html_table(table) for table in report_tables(snapshot, advice)]
    figures = report_figures(snapshot)
    parts += [_html_figure(figure) for figure in figures]
    for source in snapshot.sources:
        name, text = html.escape(source.name), html.escape(source.text)
        parts.append(f"<details><summary>{name}</summary><pre>{text}</pre></details>")
    if snapshot.log:
        parts.append(f"<h2>Log</h2><pre>{html.escape(snapshot.log)}</pre>")
    if figures:
        parts.append(f"<script>{_plotly_js()}</script><script>{_DRAW}</script>")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _plotly_js() -> str:
    """The library as the installed plotly package brings it along."""
    return (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


def escape_markdown(text: str) -> str:
    """`text` on one line, with nothing in it that Markdown would act on."""
    return _MARKDOWN.sub(r"\\\g<0>", " ".join(text.split()))


def _markdown_table(table: Table) -> str:
    rule = ["---:" if index in table.numeric else "---" for index in range(len(table.columns))]
    head, *rows = (map(escape_markdown, row) for row in (table.columns, *table.rows))
    lines = [head, rule, *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _fenced(text: str) -> str:
    """`text` as it is, in a fence that nothing in it can close."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def _html_table(table: Table) -> str:
    def cells(row: tuple[str, ...], tag: str) -> str:
        kinds = ['class="n"' if i in table.numeric else "" for i in range(len(row))]
        return "".join(
            f"<{tag} {kind}>{html.escape(cell)}</{tag}>"
            for kind, cell in zip(kinds, row, strict=True)
        )

    head = f"<thead><tr>{cells(table.columns, 'th')}</tr></thead>" if any(table.columns) else ""
    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in table.rows)
    remark = f'<p class="remark">{html.escape(table.remark)}</p>' if table.remark else ""
    return (
        f'<h2>{html.escape(table.title)}</h2><div class="scroll"><table>{head}'
        f"<tbody>{body}</tbody></table></div>{remark}"
    )


def _html_figure(figure: Figure) -> str:
    # Inside a script element only "<" could end it; in JSON it may be written as an escape.
    data = figure.json.replace("<", "\\u003c")
    note = f'<p class="remark">{html.escape(figure.remark)}</p>' if figure.remark else ""
    return (
        f"<h2>{html.escape(figure.title)}</h2>{note}<div></div>"
        f'<script type="application/json" class="figure">{data}</script>'
    )
