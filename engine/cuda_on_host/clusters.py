"""`__cluster_dims__(x, y, z)` of a preprocessed kernel: what tells a launch its clusters.

The dimensions may be any constant expression, a template's parameters included. They become the
kernel's first statement, which writes them and returns when a launch asks (`asked_for_cluster` of
`native/host_keywords.h`), and each kernel that has them gets a function that asks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

ATTRIBUTE = "__cluster_dims__"
_KEPT = re.compile(r"\bCOH_CLUSTER_DIMS\s*\(")  # what that macro becomes
_KERNEL_NAME = re.compile(r"(\w+)\s*$")


@dataclass(frozen=True, slots=True)
class ClusterKernels:
    """A source whose kernels with clusters can be asked for them."""

    text: str
    kernels: frozenset[str]  # their names

    def of(self, entry: str) -> bool:
        """Whether an entry (`fwd<64, true>`) is one of them."""
        return entry.partition("<")[0].rpartition("::")[2].strip() in self.kernels

    def exports(self, entries: Sequence[str]) -> str:
        """C++ behind the source: `coh_cluster_N` of the entries with clusters."""
        return "".join(
            f'\nextern "C" __attribute__((visibility("default"))) void coh_cluster_{number}'
            "(uint32_t *dims, void **values) { coh_module.asks_for_cluster = dims; "
            f"coh_call_{number}(values); coh_module.asks_for_cluster = nullptr; }}\n"
            for number, entry in enumerate(entries)
            if self.of(entry)
        )


def place_cluster_dims(text: str) -> ClusterKernels:
    """Move the dimensions into the kernels' bodies; lines stay in place.

    Args:
        text: the output of `-E`.
    """
    kernels = set()
    edits: list[tuple[int, int, str]] = []  # from, to, replacement
    for attribute in _KEPT.finditer(text):
        end = _behind(text, attribute.end() - 1)
        body, parameters = _body(text, end)
        edits.append((attribute.start(), end, "\n" * text.count("\n", attribute.start(), end)))
        name = _KERNEL_NAME.search(text, end, parameters)
        if body is None or name is None:
            continue  # a declaration: the definition says it again
        kernels.add(name[1])
        dims = " ".join(text[attribute.end() : end - 1].split())
        edits.append((body + 1, body + 1, f" if (coh::asked_for_cluster({dims})) return;"))
    for begin, end, replacement in sorted(edits, reverse=True):
        text = text[:begin] + replacement + text[end:]
    return ClusterKernels(text, frozenset(kernels))


def _behind(text: str, at: int) -> int:
    """Behind the parenthesis that closes the one at `at`; the end of the text without one."""
    depth = 0
    for match in re.compile(r"[()]").finditer(text, at):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.end()
    return len(text)


def _body(text: str, at: int) -> tuple[int | None, int]:
    """(brace that opens the function declared at `at`, parenthesis that opens its parameters)."""
    parameters = at
    while match := re.compile(r"[(;{]").search(text, at):
        if match[0] != "(":
            return (match.start() if match[0] == "{" else None), parameters
        parameters = match.start()
        at = _behind(text, match.start())
    return None, parameters
