"""`auto` in the menus: what it takes stands there, and the page shows that kernel."""

from __future__ import annotations

import pytest
from app_driver import metric, texts
from test_compare_page import save
from test_known_times_shown import taken

from engine.auto import choose
from engine.config import find_variant
from engine.cuda_source.sources import read_sources
from engine.devices import find_device
from engine.history import History
from engine.problem import Problem

LOOKED_UP = History(work="look up")


@pytest.mark.parametrize("page", ["", "batch"])
def test_auto_is_the_kernel_that_it_takes(open_app, page):
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
    # To go on by hand is the same kernel under its own name.
    at.button(key="auto_by_hand").click().run()
    assert at.selectbox(key="variant").value == choice.variant.id
    for name, value in choice.config.items():
        keyed = [*at.segmented_control, *at.select_slider]
        shown = next(w.value for w in keyed if w.key == f"{choice.variant.id}.{name}")
        assert shown == value


def test_a_sweep_of_auto_is_of_what_it_takes(open_app):
    at = open_app("sweep", gpu="L4", sweep_variants="auto", sweep_S="128,2048")
    assert not at.exception
    assert not at.error
    for seqlen in (128, 2048):
        taken = choose(Problem(1, 1, seqlen, 64), find_device("L4"), history=LOOKED_UP)
        for tunable in taken.variant.tunables:
            assert any(w.key == f"sweep_{tunable.name}" for w in at.text_input), tunable.name


def test_a_sweep_of_auto_goes_by_times_that_sessions_hold(open_app):
    sha = read_sources(find_variant("v01").source).source_sha256
    save("Faster than any", taken(0.5, 128, sha))
    untimed = choose(Problem(1, 1, 256, 64), find_device("L4"), history=LOOKED_UP).variant
    assert untimed.id != "v01"
    for seqlen, variant in (("128", find_variant("v01")), ("256", untimed)):
        at = open_app("sweep", gpu="L4", sweep_variants="auto", sweep_S=seqlen)
        assert not at.error
        drawn = {w.label for w in at.text_input if w.key.removeprefix("sweep_").islower()}
        assert drawn - {"Run on"} == {t.name.replace("_", " ") for t in variant.tunables}
