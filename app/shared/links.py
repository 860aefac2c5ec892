"""Report and remove values of a link that this app does not support."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches

import streamlit as st

from app.shared import url_state
from app.shared.machine import local_gpu
from app.shared.selection import FEATURES, LOCAL_GPU, SIZES, is_gpu, tunable_key
from app.shared.widgets import plain_markdown
from engine.attention.config import all_variants, find_variant
from engine.base.errors import AttuneError
from engine.devices import find_device
from kernels.variant import AUTO, Variant

_KERNEL = (
    *("gpu", "variant", *SIZES, "KV", "HKV", "dtype", "causal"),
    *FEATURES,
    *("backend", "check", "schedule", "inputs", "factor", "seed", "timeout"),
)
# The names that a page reads from its URL, by its title.
_NAMES = {
    "Tune": (*_KERNEL, "live", "tab"),
    "Kernels": (*_KERNEL, "kernels_tab", "kernels_rung"),
    "Batch size": (
        *_KERNEL,
        *("heads_free", "max_batch", "points", "points_file", "calibrate", "batch_tab"),
        *("traffic", "traffic_unit", "utilisation", "arrivals", "budget"),
        *("mix", "mix_of", "mix_target"),
    ),
    "Sweep": (
        *_KERNEL,
        *(f"sweep_{name}" for name in (*SIZES, "KV", "HKV", "causal", "dtypes", "presets")),
        *("sweep_variants", "sweep_own", "sweep_strategy", "sweep_evaluations", "sweep_seconds"),
        *("sweep_execute", "sweep_full", "sweep_tab", "sweep"),
    ),
    "Sessions": ("session", "baseline"),
    "Compare": (
        *("session", "baseline"),
        *("compare_by", "compare_across", "compare_before", "compare_after"),
    ),
    "Devices": (),
}
_MAX_NOTES = 5
_LONGEST = 40  # letters of a name or value that a note quotes


def begin(page: str) -> None:
    """Follow a link, and note its unknown names, before the page reads its values.

    Args:
        page: its title.
    """
    url_state.follow_link()
    if "link_checked" in st.session_state:
        return
    st.session_state["link_checked"] = True
    _note_names(page)
    _note_gpu()
    _note_variant()


def draw() -> None:
    """Draw the notes until they are dismissed."""
    if not url_state.notes():
        return
    for sentence in url_state.notes():
        st.warning(plain_markdown(sentence), icon=":material/link_off:")
    st.button("Dismiss", key="link_dismiss", on_click=url_state.notes().clear)


def _note_names(page: str) -> None:
    variants = all_variants()
    by_page = {title: {*names, *_tunable_names(title, variants)} for title, names in _NAMES.items()}
    others = [name for name in st.query_params if name not in by_page[page]]
    titles = {name: [t for t, names in by_page.items() if name in names] for name in others}
    for pages in dict.fromkeys(tuple(known) for known in titles.values() if known):
        of_them = [name for name in others if tuple(titles[name]) == pages]
        url_state.note(_of_other_pages(of_them, pages))
    names = set().union(*by_page.values())
    not_understood = [name for name in others if not titles[name]]
    for name in not_understood[:_MAX_NOTES]:
        url_state.note(_left_out(name, st.query_params[name], names, variants))
    if more := not_understood[_MAX_NOTES:]:
        url_state.note(f"{len(more)} more unknown names of the link are left out.")
    for name in others:
        del st.query_params[name]


def _tunable_names(page: str, variants: Iterable[Variant]) -> Iterable[str]:
    for variant in variants:
        for tunable in variant.tunables:
            if page == "Sweep":  # the Sweep page has no config of its own
                yield f"sweep_{tunable.name}"
            elif "variant" in _NAMES[page]:
                yield tunable_key(variant, tunable)


def _of_other_pages(names: Sequence[str], pages: Sequence[str]) -> str:
    """Return the sentence that names the ignored values of a link and the pages that support
    them."""
    asked = ", ".join(f"{name}={_short(st.query_params[name])}" for name in names[:_MAX_NOTES])
    more = f" and {len(names) - _MAX_NOTES} more" if len(names) > _MAX_NOTES else ""
    *first, last = pages
    listed = f"the pages {', '.join(first)} and {last}" if first else f"the {last} page"
    are = "are" if len(names) > 1 else "is"
    return f"The link's {asked}{more} {are} left out: only {listed} can use such a value."


def _left_out(name: str, value: str, names: Iterable[str], variants: Iterable[Variant]) -> str:
    """Return the sentence that names an ignored value of a link and what it should be."""
    asked = f"The link's {_short(name)}={_short(value)} is left out"
    having = [v for v in variants if any(t.name == name for t in v.tunables)]
    if having:
        linked = st.query_params.get("variant")
        of = next((v for v in having if v.id == linked), having[0])
        return f"{asked}: a tunable is written with its variant, {of.id}.{name}={_short(value)}" + (
            f" with variant={of.id}." if linked != of.id else "."
        )
    variant_id, dot, _ = name.partition(".")
    variant = next((v for v in variants if v.id == variant_id), None)
    if dot and variant is not None:
        tunables = ", ".join(t.name for t in variant.tunables) or "none"
        return f"{asked}: the tunables of {variant.id} are {tunables}."
    folded = {known.casefold(): known for known in names}
    if near := get_close_matches(name.casefold(), folded, n=1):
        return f"{asked}: did you mean {folded[near[0]]}={_short(value)}?"
    return f"{asked}: no page has such a value. Copy link, in the sidebar, makes a valid link."


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _note_gpu() -> None:
    asked = st.query_params.get("gpu")
    if asked and asked != LOCAL_GPU and not is_gpu(asked):
        _take("gpu", lambda: find_device(asked).name)
    if asked == LOCAL_GPU and local_gpu().spec is None:
        url_state.note(f"The link asks for the local GPU: {local_gpu().why}")
        del st.query_params["gpu"]


def _note_variant() -> None:
    asked = st.query_params.get("variant")
    if asked and asked not in {AUTO, *(v.id for v in all_variants())}:
        _take("variant", lambda: find_variant(asked).id)


def _take(key: str, find: Callable[[], str]) -> None:
    """Replace the value by its name in the menu; note a sentence if the menu lacks it."""
    try:
        st.session_state[key] = find()
    except AttuneError as error:
        url_state.note(str(error))
    del st.query_params[key]
