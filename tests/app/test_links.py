"""Links: values that are not available are named; banner and notes can be dismissed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from app_driver import until
from streamlit.testing.v1 import AppTest
from words import says

from app.shared import links

APP = Path(links.__file__).parents[1]
# A tunable without its variant, one that the variant lacks, a wrong case, an unknown name.
ODD = {"cluster_size": "8", "v14.clusters": "8", "s": "64", "x" * 90: "1"}
SAID = (
    "cluster_size=8 is left out: a tunable is written with its variant, v14.cluster_size=8",
    "v14.clusters=8 is left out: the tunables of v14 are num_warps, block_n,",
    "s=64 is left out: did you mean S=64?",
    "x" * 40 + "…=1 is left out: no page has such a value.",
)


@pytest.mark.parametrize("page", ["", "sweep", "devices"])
def test_a_name_that_is_not_understood_is_named_on_every_page(open_app, page) -> None:
    at = open_app(page, **ODD, S="64")
    assert not at.exception
    notes = notes_of(at)
    if page == "devices":
        assert says(notes.pop(0), "link_of_other_pages", "S=64", "the pages Tune, Kernels,")
    assert len(notes) == len(ODD)
    for said, note in zip(SAID, notes, strict=True):
        assert said in note
    assert not set(ODD) & set(at.query_params)
    assert ("S" in at.query_params) == (page != "devices")
    at.button(key="link_dismiss").click().run()
    assert not notes_of(at)


def notes_of(at: AppTest) -> list[str]:
    return [w.value.replace("\\", "") for w in at.warning if w.icon.endswith("link_off:")]


def test_values_of_another_page_are_named_with_the_page(open_app) -> None:
    at = open_app("batch", max_batch="256", **{"v05.num_splits": "4", "tab": "Variants"})
    (note,) = notes_of(at)
    assert says(note, "link_of_other_pages", "tab=Variants", "the Tune page")
    assert set(at.query_params) >= {"max_batch"}
    at = open_app("sweep", max_batch="256", points="csv", sweep_block_n="64")
    (note,) = notes_of(at)
    assert says(note, "link_of_other_pages", "max_batch=256, points=csv", "the Batch size page")


def test_many_unknown_names_are_counted(open_app) -> None:
    at = open_app(**{f"utm_{i}": "a" for i in range(9)})
    assert len(at.warning) == 6
    assert says(at.warning[-1].value, "names_link_understood", "4")


def test_invalid_list_and_tab_values_are_reported(open_app) -> None:
    at = open_app("sweep", sweep_variants="v01,v77", sweep_presets="nowhere")
    said = " ".join(w.value.replace("\\", "") for w in at.warning)
    assert "sweep_variants=v77" in said
    assert "sweep_presets=nowhere" in said
    assert at.multiselect(key="sweep_variants").value == ["v01"]
    at = open_app("batch", batch_tab="Curves")  # the tabs appear once the kernel is simulated
    until(at, lambda page: any("there is no such tab" in w.value for w in page.warning))


def test_a_variant_is_found_by_its_long_name(open_app) -> None:
    at = open_app(variant="v05_kv_split")
    assert not at.warning
    assert at.selectbox(key="variant").value == "v05"


def names_read_in(folder: str) -> Iterator[str]:
    """Return the key expressions in the calls of `url_state`."""
    first = {"seed", "value_of", "chosen", "remembered", "keep", "write"}
    second = {"tabs"}
    third = {"number", "amount", "number_or_none", "text", "toggle", "multiselect", "select"}
    third |= {"amount_or_none", "optional_select", "segments", "number_slider", "slider"}
    places = {**dict.fromkeys(first, 0), **dict.fromkeys(second, 1), **dict.fromkeys(third, 2)}
    for path in (APP / folder).rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        constants = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name)
        }
        for call in ast.walk(tree):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
                continue
            owner, place = call.func.value, places.get(call.func.attr)
            if isinstance(owner, ast.Name) and owner.id == "url_state" and place is not None:
                key = call.args[place]
                key = constants.get(key.id, key) if isinstance(key, ast.Name) else key
                if isinstance(key, ast.Constant):
                    yield str(key.value)


@pytest.mark.parametrize("page", ["Tune", "Batch size", "Sweep", "Sessions", "Compare"])
def test_the_allowed_names_are_those_that_pages_read(page: str) -> None:
    read = set(names_read_in(page.split()[0].lower()))
    assert read
    assert read <= set(links._NAMES[page])
    shared = {*names_read_in("shared"), *names_read_in("evaluation")}
    assert "gpu" in shared
    assert shared <= set(links._NAMES["Tune"])


def test_unavailable_values_are_reported(open_app) -> None:
    asked = {"S": "abc", "dtype": "float64", "v05.num_splits": "7", "gpu": "Voodoo2"}
    at = open_app(variant="v05", **asked)
    said = " ".join(w.value.replace("\\", "") for w in at.warning)
    for name in ("S=abc", "dtype=float64", "v05.num_splits=7", "Voodoo2"):
        assert name in said, name
    assert at.number_input(key="S").value == 128
    at.button(key="link_dismiss").click().run()
    assert not at.warning
    assert not at.exception


def test_a_valid_link_gives_no_note(open_app) -> None:
    assert not open_app(variant="v05", S="64", gpu="l4", KV="", causal="true").warning


def test_a_part_of_a_gpu_is_offered_while_it_is_chosen(open_app) -> None:
    app = open_app(variant="v05", S="64", gpu="h200 mig 1g.18gb")
    assert not app.warning
    menu = app.selectbox(key="gpu")
    assert (menu.value, app.query_params["gpu"]) == ("H200 MIG 1g.18gb", "H200 MIG 1g.18gb")
    menu.select("L4").run()
    assert app.selectbox(key="gpu").value == "L4"
    assert not any("MIG" in option for option in app.selectbox(key="gpu").options)
