"""Links: what they ask for and cannot have is said; the banner and the notes can be dismissed."""

from __future__ import annotations

from app_driver import texts


def test_values_that_cannot_be_had_are_named(open_app) -> None:
    asked = {"S": "abc", "dtype": "float64", "v05.num_splits": "7", "gpu": "Voodoo2"}
    at = open_app(variant="v05", **asked)
    said = " ".join(w.value.replace("\\", "") for w in at.sidebar.warning)
    for name in ("S=abc", "dtype=float64", "v05.num_splits=7", "Voodoo2"):
        assert name in said, name
    assert at.number_input(key="S").value == 128
    at.button(key="link_dismiss").click().run()
    assert not at.sidebar.warning
    assert not at.exception


def test_a_good_link_has_nothing_to_say(open_app) -> None:
    assert not open_app(variant="v05", S="64", gpu="l4", KV="", causal="true").sidebar.warning


def test_the_banner_is_dismissed_for_the_tab(open_app) -> None:
    at = open_app()
    assert "No NVIDIA GPU on this machine" in texts(at)
    at.button(key="banner_dismiss").click().run()
    assert "No NVIDIA GPU on this machine" not in texts(at)
