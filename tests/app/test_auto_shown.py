"""`auto` in the menus: they name the kernel it resolves to, and the page shows that kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from app_driver import metric, texts
from made_up_history import Times
from test_compare_page import save
from test_known_times_shown import timed

from app.shared import auto, known_times
from engine.attention.config import find_variant
from engine.attention.problem import Problem
from engine.choose.auto import choose
from engine.cuda_source.sources import read_sources
from engine.devices import find_device
from engine.history import History, Time
from engine.history.known_time import times_of

LOOKED_UP = History(work="look up")


@pytest.mark.parametrize("page", ["", "batch"])
def test_auto_is_shown_as_the_chosen_kernel(open_app, page):
    at = open_app(page, variant="auto", gpu="L4", S="2048", H="8")
    assert not at.exception
    assert not at.error
    choice = choose(Problem(1, 8, 2048, 64), find_device("L4"), history=LOOKED_UP)
    menu = at.selectbox(key="variant")
    assert menu.value == "auto"
    assert menu.options[0] == f"auto: {choice.variant.id}  {choice.variant.title}"
    assert "auto" in at.query_params["variant"]
    assert choice.variant.idea in texts(at).replace("\\", "")
    if page:
        return
    assert metric(at, "Correctness")
    # Continuing by hand selects the same kernel under its own name.
    at.button(key="auto_by_hand").click().run()
    assert at.selectbox(key="variant").value == choice.variant.id
    for name, value in choice.config.items():
        keyed = [*at.segmented_control, *at.select_slider]
        shown = next(w.value for w in keyed if w.key == f"{choice.variant.id}.{name}")
        assert shown == value


def test_sweep_of_auto_sweeps_the_chosen_kernel(open_app):
    at = open_app("sweep", gpu="L4", sweep_variants="auto", sweep_S="128,2048")
    assert not at.exception
    assert not at.error
    for seqlen in (128, 2048):
        chosen = choose(Problem(1, 1, seqlen, 64), find_device("L4"), history=LOOKED_UP)
        for tunable in chosen.variant.tunables:
            assert any(w.key == f"sweep_{tunable.name}" for w in at.text_input), tunable.name


def test_sweep_of_auto_uses_times_of_sessions(open_app):
    sha = read_sources(find_variant("v01").source).source_sha256
    save("Faster than any", timed(0.5, 128, sha))
    untimed = choose(Problem(1, 1, 256, 64), find_device("L4"), history=LOOKED_UP).variant
    assert untimed.id != "v01"
    for seqlen, variant in (("128", find_variant("v01")), ("256", untimed)):
        at = open_app("sweep", gpu="L4", sweep_variants="auto", sweep_S=seqlen)
        assert not at.error
        drawn = {w.label for w in at.text_input if w.key.removeprefix("sweep_").islower()}
        assert drawn - {"Run on"} == {t.name.replace("_", " ") for t in variant.tunables}


@dataclass(frozen=True)
class _Asked(History):
    """A history with a simulated time for every kernel, which counts how often it is asked."""

    work: str = "look up"
    us: float | None = 5.0
    asked: tuple[list[None], ...] = ([],)

    def time_of(self, *_):
        self.asked[0].append(None)
        if self.us is None:
            return None
        return Time(self.us, self.us, self.us, "predicted", "machine code", 0, "", "")


def test_final_choice_is_cached_until_its_inputs_change(monkeypatch, ladder_of):
    ladder_of("v01", "v08", "v09", "v11")
    problem = Problem(3, 8, 640, 64)
    history = _Asked(Times({}))

    def ask(history):
        history.asked[0].clear()
        monkeypatch.setattr(known_times, "history", lambda: history)
        return auto.choice_for(problem, "L4"), len(history.asked[0])

    assert ask(replace(history, us=None))[1] > 0
    first, number = ask(history)  # a choice that was not final is asked for again
    assert (first.is_final, number > 0) == (True, True)
    assert ask(history) == (first, 0)
    # A time of this problem, one of another problem (it may calibrate), one of another source.
    here = replace(timed(0.5, 128, "ab" * 32), problem=problem)
    mine = replace(timed(9.5, 128, "ab" * 32), variant=first.variant.id)
    for evaluation, changes in (
        (timed(0.5, 128, "ab" * 32), False),
        (here, True),
        (mine, True),
    ):
        times = Times({"L4": times_of([evaluation], session="mine")})
        assert (ask(replace(history, times=times))[1] > 0) == changes
        ask(history)
    with first.variant.source.open("a") as source:
        source.write("// edited")
    assert ask(history)[1] > 0
    assert ask(history)[1] == 0
