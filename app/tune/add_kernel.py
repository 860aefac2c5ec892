"""Add a kernel: a short form that describes a `.cu` file, and what that means on this problem."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import pandas as pd
import streamlit as st

from app.shared import notices, tables
from app.shared.selection import FORMATS, Selection
from app.shared.terms import TERMS
from app.shared.widgets import plain_markdown, problem
from engine.base.errors import AttuneError, InvalidKernel
from engine.own_kernels.draft import Draft, draft_of
from engine.own_kernels.explain import (
    Where,
    described,
    explain,
    why_arguments_differ,
    write_description,
)
from engine.own_kernels.host_launch import Signature, kernels_of
from engine.own_kernels.pointer_types import why_types_differ
from engine.own_kernels.registry import check_kernel, forget_kernel, keep_kernel, kept_kernels
from engine.plan import make_plan
from kernels.description import read_text
from kernels.toml_block import KernelDescriptionError
from kernels.variant import Variant

_PLACE = "adding"
_ADDED = "kernel_added"
_OPEN = "add_kernel_open"
_MASKS = {False: "not causal", True: "causal"}
_LAYOUTS = {"bhsd": "[B, H, S, D]", "bshd": "[B, S, H, D]", "bs3hd": "[B, S, 3, H, D]"}


def select_added() -> None:
    """Select the kernel that was just added. Call before the sidebar, whose menu shows it.

    A callback of the dialog could not: the browser still has the menu's old choice, and a poll of
    the page may bring it back.
    """
    if added := st.session_state.pop(_ADDED, ""):
        st.session_state["variant"] = added


def button(selection: Selection) -> None:
    """The button that opens the form.

    The form stays open when the page runs again by itself, for instance for a prediction.
    """
    if st.button("Add a kernel", key="add_kernel", icon=":material/add:", help=TERMS["add_kernel"]):
        st.session_state[_OPEN] = True
    if st.session_state.get(_OPEN):
        _dialog(selection)


def _close() -> None:
    st.session_state[_OPEN] = False


@st.dialog("Add a kernel", width="large", icon=":material/add:", on_dismiss=_close)
def _dialog(selection: Selection) -> None:
    if _ADDED in st.session_state:
        _close()
        st.rerun()  # `select_added` follows
    typed = st.text_input(
        "Source file on this machine",
        key="add_path",
        placeholder="/path/to/my_kernel.cu",
        help=TERMS["add_path"],
    )
    notices.draw(_PLACE)
    if typed.strip():
        _file(Path(typed.strip()).expanduser().absolute(), selection)
    _kept()


def _file(path: Path, selection: Selection) -> None:
    """A file that describes itself is added as it is; any other gets the form."""
    try:
        variant = check_kernel(path)
    except InvalidKernel as error:
        if not error.block:
            problem(str(error))
            return
        _form(path, selection)
        return
    except AttuneError as error:
        problem(str(error))
        return
    st.success(f"{plain_markdown(path.name)} describes itself.", icon=":material/check:")
    _explanation(path, variant, selection)
    st.button("Add", key="add_described", type="primary", on_click=_add, args=(path,))


def _form(path: Path, selection: Selection) -> None:
    try:
        text = read_text(path)
    except KernelDescriptionError as error:
        problem(str(error))
        return
    kernels = kernels_of(text)
    if not kernels:
        problem(f"{path.name} has no __global__ function with a body: name the file that has it.")
        return
    chosen = kernels[0]
    if len(kernels) > 1:
        names = {kernel.name: kernel for kernel in kernels}
        chosen = names[st.selectbox("Kernel", list(names), key="add_entry_of")]
        st.caption(
            "One pass is written here. For several, add the other `[[passes]]` to what is written."
        )
    draft = _fields(_key(path, text, chosen), draft_of(text, chosen))
    toml = draft.toml()
    try:
        _explanation(path, described(path, toml), selection, kernels)
    except AttuneError as error:
        problem(str(error))
        return
    with st.expander("The description", icon=":material/description:"):
        st.code(draft.block(), language="toml")
    with st.container(horizontal=True):
        for where, label in zip(
            get_args(Where), ("Write it into the file and add", "Write it beside the file and add"),
            strict=True,
        ):  # fmt: skip
            st.button(
                label,
                key=f"add_{where.split()[0]}",
                type="primary" if where == "beside it" else "secondary",
                help=TERMS["add_beside" if where == "beside it" else "add_inside"],
                on_click=_write_and_add,
                args=(path, toml, where),
            )


def _key(path: Path, text: str, kernel: Signature) -> str:
    """Of the widgets of one kernel: another file or kernel starts from its own guess."""
    return hashlib.sha256(f"{path}\0{text}\0{kernel.name}".encode()).hexdigest()[:12]


def _fields(key: str, guess: Draft) -> Draft:
    """The form's fields, filled with what was guessed from the source."""

    def text(container: Any, label: str, name: str, value: str, term: str) -> str:
        field = f"add_{name}_{key}"
        return str(container.text_input(label, value, key=field, help=TERMS[term]))

    st.caption("Guessed from the source: look each field over.")
    entry = text(st, "Entry", "entry", guess.entry, "add_entry")
    columns = st.columns(3, gap="small")
    grid = tuple(
        text(column, f"Grid {axis}", f"grid_{axis}", value, "add_grid")
        for column, axis, value in zip(columns, "xyz", guess.grid, strict=True)
    )
    left, middle, right = st.columns(3, gap="small")
    threads = text(left, "Threads", "threads", guess.threads, "add_threads")
    smem = text(middle, "Dynamic shared memory, bytes", "smem", guess.smem_bytes, "add_smem")
    dims = text(right, "head_dim", "dims", ", ".join(map(str, guess.head_dims)), "add_head_dims")
    left, middle, right = st.columns(3, gap="small")
    layout = left.selectbox(
        "Layout",
        list(_LAYOUTS),
        list(_LAYOUTS).index(guess.layout),
        key=f"add_layout_{key}",
        format_func=_LAYOUTS.__getitem__,
    )
    dtypes = middle.multiselect(
        "Formats", list(FORMATS), guess.dtypes, key=f"add_dtypes_{key}",
        format_func=FORMATS.__getitem__,
    )  # fmt: skip
    masks = right.multiselect(
        "Masks", list(_MASKS), guess.causal, key=f"add_masks_{key}", format_func=_MASKS.__getitem__
    )
    args = st.text_area(
        "Arguments in the order of the kernel's parameters",
        guess.args,
        key=f"add_args_{key}",
        height=min(360, 60 + 24 * (guess.args.count("\n") + 1)),
        help=TERMS["add_args"],
    )
    scratch = guess.scratch
    if scratch:
        scratch = st.text_area(
            "Scratch buffers", scratch, key=f"add_scratch_{key}", help=TERMS["add_scratch"]
        )
    return replace(
        guess,
        entry=entry,
        grid=grid,
        threads=threads,
        smem_bytes=smem,
        head_dims=dims,
        layout=layout,
        dtypes=tuple(dtypes),
        causal=tuple(masks),
        args=args,
        scratch=scratch,
        is_checked=True,
    )


def _explanation(
    path: Path, variant: Variant, selection: Selection, kernels: tuple[Signature, ...] | None = None
) -> None:
    """What is launched on the sidebar's problem, and what each argument is there."""
    if selection.problem is None:
        problem(selection.error)
        return
    try:
        plan = make_plan(variant, selection.problem, variant.default_config())
    except AttuneError as error:
        st.info(plain_markdown(str(error)), icon=":material/block:")
        return
    declared = kernels_of(read_text(path)) if kernels is None else kernels
    if why := why_arguments_differ(plan, declared) or why_types_differ(plan, read_text(path)):
        st.warning(plain_markdown(why), icon=":material/warning:")
    st.markdown(f"**On {plain_markdown(selection.problem.label())}**")
    rows = explain(plan, declared)
    names = {"what": "parameter", "given": "is given", "type": "type", "value": "here"}
    tables.draw(pd.DataFrame([asdict(row) for row in rows]).rename(columns=names), rows=14)


def _kept() -> None:
    """The kernels that were added, each with a button that takes it off the list."""
    kept = kept_kernels()
    if not kept:
        return
    with st.expander(f"Added kernels: {len(kept)}", icon=":material/list:"):
        for path in kept:
            left, right = st.columns([5, 1], vertical_alignment="center")
            left.text(str(path))
            right.button(
                "Remove",
                key=f"forget_{path.stem}",
                help="Takes it off the list. The file stays.",
                on_click=_forget,
                args=(path.stem,),
            )


def _write_and_add(path: Path, toml: str, where: Where) -> None:
    with notices.errors_to(_PLACE):
        write_description(path, toml, where)
        _add(path)


def _add(path: Path) -> None:
    with notices.errors_to(_PLACE):
        st.session_state[_ADDED] = keep_kernel(path).id


def _forget(variant_id: str) -> None:
    with notices.errors_to(_PLACE):
        forget_kernel(variant_id)
