"""Links that open a source file in the editor of the machine on which the browser runs."""

from __future__ import annotations

import ipaddress
import os
import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlsplit

import streamlit as st

_VARIABLE = "ATTUNE_EDITOR"
_DEFAULT = "vscode://file{path}:{line}"
_OFF = "off"
# Schemes that editors register and that only open a file. Schemes of pages (http, javascript, data,
# file …) are left out: the link must not lead anywhere else.
_SCHEMES = (
    "vscode",
    "vscode-insiders",
    "vscodium",
    "cursor",
    "windsurf",
    "zed",
    "idea",
    "clion",
    "jetbrains",
    "subl",
    "txmt",
    "mvim",
    "nova",
)
_SAFE = re.compile(r"[\x21-\x7e]+")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class EditorLink(NamedTuple):
    """The link's address, empty if there is no link, and what is wrong with the setting."""

    url: str
    error: str


def editor_link(path: Path, line: int) -> EditorLink:
    """Return the link that opens `path` at `line`, which counts from 1.

    There is no link if the browser may be on another machine: over a network, or over an SSH tunnel
    unless `ATTUNE_EDITOR` names an editor that works through it.
    """
    template = os.environ.get(_VARIABLE, "")
    if template == _OFF or not _is_this_machine():
        return EditorLink("", "")
    if not template:
        if "SSH_CONNECTION" in os.environ:
            return EditorLink("", "")
        template = _DEFAULT
    if error := _error(template):
        return EditorLink("", error)
    absolute = path.resolve().as_posix()
    place = quote(absolute if absolute.startswith("/") else f"/{absolute}", safe="/:")
    return EditorLink(template.replace("{path}", place).replace("{line}", str(line)), "")


def _error(template: str) -> str:
    scheme = urlsplit(template).scheme
    if scheme in _SCHEMES and "{path}" in template and _SAFE.fullmatch(template):
        return ""
    return (
        f"{_VARIABLE}={template} is not a link to an editor: it must begin with one of "
        f"{', '.join(_SCHEMES)} and contain {{path}}, and {{line}} if the editor takes a line; for "
        f"example {_DEFAULT}. {_OFF!r} turns the link off."
    )


def _is_this_machine() -> bool:
    """True if the browser connected over the loopback interface, under its name."""
    host = urlsplit(st.context.url or "").hostname or ""
    if host not in _LOOPBACK and not host.endswith(".localhost"):
        return False
    address = st.context.ip_address  # None: loopback
    return address is None or ipaddress.ip_address(address).is_loopback
