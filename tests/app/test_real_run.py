"""A kernel runs in the real job worker; its result is saved and reopened."""

from __future__ import annotations

from app_driver import badge, charts, metric, texts, until
from words import says

from engine.sessions.store import default_store


def test_run_save_and_open_again(open_app):
    at = open_app(S="64", tab="Correctness")
    at.button(key="run").click().run()
    until(at, lambda page: metric(page, "Correctness") != "–")
    assert metric(at, "Correctness") == "Passed"
    assert len(charts(at)) == 3

    at.text_input(key="save_title").set_value("First <b>save</b> ![x](http://evil)").run()
    at.button(key="save").click().run()
    assert not at.exception
    assert says(texts(at), "saved_as")
    assert says(texts(at.run()), "saved_as")  # also on the rerun after a prediction arrives
    (info,) = [i for i in default_store().list() if not i.shipped]

    # After a reload the result is still there: it is kept in the journal, not the browser.
    again = open_app(S="64")
    assert metric(again, "Correctness") == "Passed"

    sessions = open_app("sessions", session=info.name)
    assert not sessions.exception
    lists = [d.value for d in sessions.dataframe if "title" in d.value]
    assert info.title in set(lists[0]["title"])
    assert metric(sessions, "Correctness") == "Passed"
    assert badge(sessions, "Latency") == "predicted"
    assert "http://evil" not in texts(sessions)  # it is always escaped
