"""Helpers that read a page which runs in-process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import plotly.graph_objects as go
from streamlit.testing.v1 import AppTest

import engine.jobs.manager as jobs


def until(at: AppTest, done: Callable[[AppTest], bool], timeout_s: float = 240.0) -> AppTest:
    """Rerun the page until `done(page)` is true, as its polling fragment would."""
    deadline = time.monotonic() + timeout_s
    run_s = 0.0
    while not done(at):
        assert time.monotonic() < deadline, "the page did not get there in time"
        # A rerun of the page takes a third of a second of CPU time, which delays the job.
        _wait_for_a_job(at_least_s=max(0.1, 2 * run_s), at_most_s=1.0)
        begin = time.monotonic()
        at.run()
        run_s = time.monotonic() - begin
    return at


def _wait_for_a_job(at_least_s: float, at_most_s: float) -> None:
    """Wait until a job without intermediate results ends; without such a job, `at_least_s`."""
    begin = time.monotonic()
    before = _unfinished_jobs()
    while (waited_s := time.monotonic() - begin) < at_most_s:
        if (waited_s > at_least_s and not before) or _unfinished_jobs() != before:
            return
        time.sleep(0.05)


def _unfinished_jobs() -> set[str]:
    if jobs._manager is None:
        return set()
    ends = (job for job in jobs._manager.jobs() if job.kind not in ("sweep", "live"))
    return {job.job_id for job in ends if job.state in ("queued", "running")}


def metric(at: AppTest, label: str) -> str:
    return next(m.value for m in at.metric if m.label == label)


def badge(at: AppTest, label: str) -> str:
    return next(m.delta for m in at.metric if m.label == label)


def compiled(at: AppTest) -> bool:
    """Return True if the preview shows the figures of a compiled kernel."""
    return metric(at, "Registers") != "–"


def simulated(at: AppTest) -> bool:
    """Return True if the kernel is simulated; before that the page shows only a roofline bound."""
    return badge(at, "Latency") == "predicted"


def texts(at: AppTest) -> str:
    """Return the text of all boxes, captions and Markdown of the page."""
    kinds = (at.error, at.warning, at.info, at.success, at.caption, at.markdown, at.text)
    return "\n".join(str(element.value) for kind in kinds for element in kind)


def plain_texts(at: AppTest) -> str:
    """Return `texts` without what escapes Markdown."""
    return unescaped(texts(at))


def unescaped(text: str) -> str:
    """Return a text without the backslashes and zero-width spaces that escape Markdown."""
    return text.replace("\\", "").replace("\u200b", "")


def charts(at: AppTest) -> dict[str, dict[str, Any]]:
    """Return the figures that the page sent to the browser, by key, after Plotly validates them."""
    sent = {each["key"]: json.loads(each["figure"]) for each in components(at) if "figure" in each}
    for figure in sent.values():
        go.Figure(figure)
    return sent


def components(at: AppTest) -> list[dict[str, Any]]:
    """Return the data that the page sent to its components, for those with data and a key."""
    sent = [element.proto.json for element in at.get("bidi_component") if element.proto.json]
    return [each for each in map(json.loads, sent) if isinstance(each, dict) and "key" in each]
