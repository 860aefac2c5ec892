"""Add a kernel: a form that describes a `.cu` file, and shows the launch that follows on this
problem."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import streamlit as st

from app.evaluation.source import TITLE
from app.shared import notices, tables
from app.shared.runs import DIALOG_OPEN
from app.shared.selection import FORMATS, Selection, problem_values
from app.shared.terms import TERMS
from app.shared.widgets import plain_markdown, problem
from engine.attention.config import added_kernels
from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.base.errors import AttuneError, InvalidKernel
from engine.base.table import Table
from engine.cuda_on_host.build import DEFAULT_ARCH
from engine.devices import find_device
from engine.own_kernels.draft import Draft, draft_of, in_sequence
from engine.own_kernels.host_launch import Signature, kernels_of
from engine.own_kernels.registry import (
    bring_files,
    check_kernel,
    forget_kernel,
    fork_kernel,
    register_kernel,
)
from engine.pipeline.trial import (
    Where,
    described,
    explain,
    problem_for,
    try_kernel,
    why_arguments_differ,
    why_types_differ,
    write_description,
)
from kernels.source_text import read_text
from kernels.toml_block import KernelDescriptionError
from kernels.variant import Variant

_PLACE = "adding"
_FORKING = "forking"
_ADDED = "kernel_added"
# The added kernel, the menu's previous choice, and until when that is stale.
_CHOSEN = "kernel_chosen"
_STALE_S = 5.0
_FAILED = "add_kernel_failed"  # file and description of a kernel that failed its trial
_MASKS = {False: "not causal", True: "causal"}
_LAYOUTS = {"bhsd": "[B, H, S, D]", "bshd": "[B, S, H, D]", "bs3hd": "[B, S, 3, H, D]"}


def select_added() -> None:
    """Select the kernel that was just added, and a format, mask and head_dim that it supports.

    Call before the sidebar, whose menu shows it.

    A callback of the dialog cannot do this, and doing it once is not enough: until the browser has
    the page, each of its polls sends the menu's old choice, which would restore that.
    """
    state = st.session_state
    if (added := state.pop(_ADDED, None)) is not None:
        state[_CHOSEN] = added, state.get("variant"), time.monotonic() + _STALE_S
    elif _CHOSEN in state:
        added, before, until = state[_CHOSEN]
        if time.monotonic() > until:
            del state[_CHOSEN]
            return
        if state.get("variant") != before:
            return
    state.update(added or {})


def button(selection: Selection) -> None:
    """Draw the button that opens the form. The form stays open when the page runs again."""
    if st.button("Add a kernel", key="add_kernel", icon=":material/add:", help=TERMS["add_kernel"]):
        st.session_state[DIALOG_OPEN] = True
    if st.session_state.get(DIALOG_OPEN):
        _dialog(selection)


def fork_button(selection: Selection) -> None:
    """Draw the button that copies the sidebar's kernel and opens the copy's source."""
    st.button(
        "Fork this variant",
        key="fork_kernel",
        icon=":material/fork_right:",
        help=TERMS["fork_kernel"],
        on_click=_fork,
        args=(selection.variant,),
    )
    notices.draw(_FORKING)


def _fork(variant: Variant) -> None:
    """A button's callback."""
    with notices.errors_to(_FORKING):
        st.session_state[_ADDED] = {"variant": fork_kernel(variant).id}
        st.session_state["tab"] = TITLE


def _close() -> None:
    st.session_state[DIALOG_OPEN] = False


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
    dropped = st.file_uploader(
        "Or drop the file here, with the headers that it includes",
        type=["cu", "cuh", "h", "hpp", "inl", "toml", "cubin"],
        accept_multiple_files=True,
        key="add_files",
        help=TERMS["add_files"],
    )
    notices.draw(_PLACE)
    path = (
        Path(typed.strip()).expanduser().absolute() if typed.strip() else _dropped_source(dropped)
    )
    if path is not None:
        _file(path, selection)
    _kept()


def _dropped_source(dropped: Sequence[Any]) -> Path | None:
    """Return the source among the dropped files, and ask which one if there are several."""
    if not dropped:
        return None
    try:
        sources = bring_files({file.name: file.getvalue() for file in dropped})
    except AttuneError as error:
        problem(str(error))
        return None
    if len(sources) == 1:
        return sources[0]
    names = {source.name: source for source in sources}
    return names[st.selectbox("Source", list(names), key="add_source_of")]


def _file(path: Path, selection: Selection) -> None:
    """Add a file with a description as it is; draw the form for any other."""
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
    st.success(f"{plain_markdown(path.name)} has its own description.", icon=":material/check:")
    _explanation(path, variant, selection)
    _try_button("Add", "add_described", path, variant, selection)


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
    chosen = in_sequence(text, kernels)[0]
    if len(kernels) > 1:
        names = {kernel.name: kernel for kernel in kernels}
        start = list(names).index(chosen.name)
        chosen = names[st.selectbox("Kernel", list(names), start, key="add_entry_of")]
    try:
        guess = draft_of(text, chosen)
    except InvalidKernel as error:
        problem(str(error))
        return
    if guess.later:
        entries = ", ".join(one.entry for one in (guess, *guess.later))
        st.caption(f"Passes, one after the other: {plain_markdown(entries)}")
    draft = _fields(_key(path, text, chosen), guess)
    toml = draft.toml()
    try:
        variant = described(path, toml)
        _explanation(path, variant, selection, kernels)
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
            _try_button(label, f"add_{where.split()[0]}", path, variant, selection, toml, where)


def _try_button(
    label: str,
    key: str,
    path: Path,
    variant: Variant,
    selection: Selection,
    toml: str = "",
    where: Where | None = None,
) -> None:
    """Add a kernel that compiles and is correct on a small problem. For any other, say what is
    wrong, and add it if the button is pressed again."""
    tried = hashlib.sha256(f"{path}\0{read_text(path)}\0{toml}".encode()).hexdigest()
    failed = st.session_state.get(_FAILED) == tried
    help_of = {"beside it": TERMS["add_beside"], "in the source": TERMS["add_inside"]}
    st.button(
        f"{label} anyway" if failed else label,
        key=key,
        type="secondary" if where == "in the source" else "primary",
        help=help_of.get(where or ""),
        on_click=_try_and_add,
        args=(path, variant, selection, toml, where, tried),
    )


def _key(path: Path, text: str, kernel: Signature) -> str:
    """Return the key of a kernel's widgets: each file and kernel starts from its own guess."""
    return hashlib.sha256(f"{path}\0{text}\0{kernel.name}".encode()).hexdigest()[:12]


def _fields(key: str, guess: Draft) -> Draft:
    """Draw the form's fields, filled with the guess from the source."""

    def text(container: Any, label: str, name: str, value: str, term: str) -> str:
        field = f"add_{name}_{key}"
        return str(container.text_input(label, value, key=field, help=TERMS[term]))

    usual = "" if guess.shows_head_dims else " It does not show which head_dim it is for."
    st.caption(f"Guessed from the source: check each field.{usual}")
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
    """Draw the launch on the sidebar's problem, in a format that the kernel supports, with each
    argument's value."""
    if selection.problem is None:
        problem(selection.error)
        return
    try:
        wanted = problem_for(variant, selection.problem)
        plan = make_plan(variant, wanted, variant.default_config())
    except AttuneError as error:
        st.info(plain_markdown(str(error)), icon=":material/block:")
        return
    declared = kernels_of(read_text(path)) if kernels is None else kernels
    if why := why_arguments_differ(plan, declared) or why_types_differ(plan, read_text(path)):
        st.warning(plain_markdown(why), icon=":material/warning:")
    st.markdown(f"**On {plain_markdown(wanted.label())}**")
    rows = explain(plan, declared)
    names = {"what": "parameter", "given": "is given", "type": "type", "value": "here"}
    arguments = Table.of("Arguments", map(asdict, rows))
    tables.draw(arguments.frame().rename(columns=names), rows=14)


def _kept() -> None:
    """Draw the added kernels, each with a button that removes it from the list."""
    kept = added_kernels()
    if not kept:
        return
    with st.expander(f"Added kernels: {len(kept)}", icon=":material/list:"):
        for path in kept:
            left, right = st.columns([5, 1], vertical_alignment="center")
            left.text(str(path))
            right.button(
                "Remove",
                key=f"forget_{path.stem}",
                help="Removes it from the list. The file stays.",
                on_click=_forget,
                args=(path.stem,),
            )


def _try_and_add(
    path: Path, variant: Variant, selection: Selection, toml: str, where: Where | None, tried: str
) -> None:
    with notices.errors_to(_PLACE):
        if st.session_state.get(_FAILED) != tried:
            try:
                arch = find_device(selection.gpu or selection.gpu_name).arch
            except AttuneError:
                arch = DEFAULT_ARCH
            trial = try_kernel(variant, arch, selection.problem)
            if not trial.passed:
                st.session_state[_FAILED] = tried
                raise InvalidKernel(trial.sentence)
        if where is not None:
            write_description(path, toml, where)
        added = register_kernel(path)
        supported = _supported_problem(added, selection.problem)
        st.session_state[_ADDED] = {"variant": added.id, **supported}


def _supported_problem(variant: Variant, present: Problem | None) -> dict[str, Any]:
    """Return format, mask and head_dim that the kernel supports, where the present ones are not
    supported."""
    if present is None:
        return {}
    before, after = problem_values(present), problem_values(problem_for(variant, present))
    return {name: after[name] for name in ("dtype", "causal", "D") if before[name] != after[name]}


def _forget(variant_id: str) -> None:
    st.session_state.pop(_CHOSEN, None)
    with notices.errors_to(_PLACE):
        forget_kernel(variant_id)
