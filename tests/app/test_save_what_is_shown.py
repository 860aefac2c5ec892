"""Save stores the shown evaluation with its source; a restored file can be run again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from app_driver import compiled, texts, until
from fake_jobs import done
from test_run_states import BASE, compiled_cache, jobs, run  # noqa: F401  (fixtures)
from words import says

from app.tune import run_state
from engine.attention.config import find_variant
from engine.base.errors import Status
from engine.cuda_source.sources import read_sources
from engine.sessions.store import default_store

SHA = read_sources(find_variant("v01").source).source_sha256
pytestmark = pytest.mark.usefixtures("compiled_cache")


def saved():
    store = default_store()
    (name,) = [info.name for info in store.list() if not info.shipped]
    return store.open(name)


def save(at):
    at.button(key="save").click().run()
    assert not at.exception


def test_a_current_result_is_saved_unchanged_with_its_source(open_app, jobs):  # noqa: F811
    jobs.answer = done(replace(BASE, source_sha256=SHA))
    at = run(until(open_app(gpu="L4"), compiled))
    save(at)
    snapshot = saved()
    (evaluation,) = snapshot.evaluations
    assert evaluation.status is Status.PASSED
    assert evaluation.correctness is not None
    assert next(s.sha256 for s in snapshot.sources) == SHA


def test_an_outdated_result_is_not_saved_as_current(open_app, jobs):  # noqa: F811
    jobs.answer = done(replace(BASE, source_sha256="ab" * 32))  # the source before the edit
    at = run(until(open_app(gpu="L4"), compiled))
    assert says([m.delta for m in at.metric], "older_source")
    shown = next(m.value for m in at.metric if m.label == "Registers")
    save(at)
    snapshot = saved()
    (evaluation,) = snapshot.evaluations
    assert evaluation.main_pass is not None
    assert str(evaluation.main_pass.resources.registers_per_thread) == shown
    assert evaluation.source_sha256 == SHA
    assert evaluation.correctness is None
    assert evaluation.status is Status.SKIPPED
    assert says(evaluation.reason, "has_not_been")
    assert next(s.sha256 for s in snapshot.sources) == SHA
    assert not snapshot.error_maps


def test_an_older_verdict_is_marked_in_its_tab(open_app, jobs):  # noqa: F811
    jobs.answer = done(replace(BASE, source_sha256="ab" * 32))
    at = run(until(open_app(gpu="L4", tab="Correctness"), compiled))
    assert says(texts(at), "verdict_older_source")


@pytest.mark.slow
def test_a_file_that_is_restored_is_run_again(open_app, jobs, monkeypatch):  # noqa: F811
    jobs.answer = done(replace(BASE, source_sha256=SHA))
    digest = ["first"]
    monkeypatch.setattr(run_state, "source_digest", lambda _: digest[0])
    at = until(open_app(gpu="L4"), compiled)
    at.toggle(key="live").set_value(True).run()
    assert sum(r["execute"] for r in jobs.submitted) == 1
    for text, expected in (("edited", 2), ("first", 3), ("first", 3)):
        digest[0] = text
        at.run()
        assert sum(r["execute"] for r in jobs.submitted) == expected
