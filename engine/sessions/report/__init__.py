"""A session as a document: HTML that works offline, or Markdown."""

from engine.sessions.report.document import to_html, to_markdown

__all__ = ["to_html", "to_markdown"]
