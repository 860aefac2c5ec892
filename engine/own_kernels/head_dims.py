"""The head dimensions for which a file's host code launches a kernel.

Host code is parsed, not executed. Found are launches with D as a number, as in `attend<64><<<…>>>`;
without any, the cases of a `switch` over D and comparisons with D.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine.own_kernels.host_launch import (
    Signature,
    closing,
    kernels_of,
    split_list,
    without_comments,
)
from engine.own_kernels.parameter_names import is_head_dim, joined_words

_MOST = 1024  # largest D, as in descriptions
_SWITCH = re.compile(r"\bswitch\s*(?=\()")
_CASE = re.compile(r"\bcase\s+(\d+)\s*:")
_EQUALS = re.compile(r"\b(\w+)\s*==\s*(\d+)\b")
_TOKEN = re.compile(r"\w+|\S")
# `float acc[64]`, also after a comma; `for (int d = 0; d < head_dim; …`
_ARRAY = re.compile(
    r"(?P<before>\b(?:__shared__\s+)?(?:float|double|half|__half)\s[^;(){}]{0,200}?)"
    r"\b(?P<name>\w+)\s*\[\s*(?P<length>\w+)\s*\]"
)
_LOOP = re.compile(r"\bfor\s*\([^;]{0,60};\s*(?P<index>\w+)\s*<\s*(?P<end>\w+)\s*;")
_LAST_AXIS = re.compile(r"\bsizes?\s*\(\s*(?:3|-1)\s*\)\s*$")  # `q.size(3)`


@dataclass(frozen=True, slots=True)
class _Launch:
    start: int  # position of the text between <<< and >>>
    how: str
    others: tuple[str, ...]  # template arguments that are not D
    dims: tuple[int, ...]  # possible values of D

    def differs_at(self, other: _Launch) -> set[int] | None:
        """Return the positions among the tokens of `how` at which two launches differ because of D;
        None if they differ in more than D."""
        mine, its = self.words(), other.words()
        if self.others != other.others or len(mine) != len(its):
            return None
        positions = {i for i, (a, b) in enumerate(zip(mine, its, strict=True)) if a[0] != b[0]}
        is_dim = len(self.dims) == len(other.dims) == 1 and all(
            (mine[i][0], its[i][0]) == (str(self.dims[0]), str(other.dims[0])) for i in positions
        )
        return positions if is_dim or not positions else None

    def words(self) -> list[re.Match[str]]:
        return list(_TOKEN.finditer(self.how))


def chosen_head_dims(
    text: str, kernel: Signature, constants: Sequence[tuple[str, str]]
) -> tuple[int, ...]:
    """Return the head dimensions, ascending; empty if the host code does not determine them.

    Launches that differ from the first one in more than D are ignored, because a description has
    one launch for all.
    """
    if launches := _launches(text, kernel, constants):
        same = [one for one in launches if launches[0].differs_at(one) is not None]
        return tuple(sorted({dim for one in same for dim in one.dims}))
    host = without_comments(text)
    for one in kernels_of(text):
        host = host.replace(one.body, "")
    return tuple(sorted({dim for dim in _compared(host) if 1 <= dim <= _MOST}))


def most_head_dim(kernel: Signature, constants: Sequence[tuple[str, str]]) -> int:
    """Return the largest D for which a thread's local arrays are long enough: 64 for `float
    acc[64]` if a loop over D indexes it. 1024 if no array limits it."""
    lengths = {}
    for match in _ARRAY.finditer(kernel.body):
        numbers = [number for name, number in constants if name == match["length"]]
        number = match["length"] if match["length"].isdigit() else "".join(numbers[:1])
        if number and "__shared__" not in match["before"]:
            lengths[match["name"]] = int(number)
    most = _MOST
    for loop in _LOOP.finditer(kernel.body):
        if is_head_dim(joined_words(loop["end"])):
            indexed = re.compile(rf"\b(\w+)\s*\[\s*{loop['index']}\s*\]")
            most = min([most, *(lengths.get(n, _MOST) for n in indexed.findall(kernel.body))])
    return max(most, 1)


def with_head_dim_named(text: str, kernel: Signature, constants: Sequence[tuple[str, str]]) -> str:
    """Return the text with `head_dim` for the numbers in its first launch that stand for D."""
    launches = _launches(text, kernel, constants)
    if not launches:
        return text
    first = launches[0]
    positions = set().union(*(first.differs_at(one) or () for one in launches))
    code = without_comments(text)
    for position in sorted(positions, reverse=True):
        word = first.words()[position]
        start, end = first.start + word.start(), first.start + word.end()
        code = f"{code[:start]}head_dim{code[end:]}"
    return code if positions else text


def _launches(text: str, kernel: Signature, constants: Sequence[tuple[str, str]]) -> list[_Launch]:
    """Return the launches that give D as a number or as a constant of the file."""
    index = next(
        (i for i, p in enumerate(kernel.template) if is_head_dim(joined_words(p.name))), None
    )
    if index is None:
        return []
    name = kernel.name.rpartition("::")[2]
    found = []
    for match in re.finditer(
        rf"\b{name}\s*<(?P<arguments>[^;<>]{{0,500}})>\s*<<<(?P<how>[^;]{{0,500}}?)>>>",
        without_comments(text),
    ):
        given = split_list(match["arguments"])
        if index >= len(given):
            continue
        numbers = [number for known, number in constants if known == given[index]]
        numbers = [given[index]] if given[index].isdigit() else numbers
        dims = tuple(dim for dim in dict.fromkeys(map(int, numbers)) if 1 <= dim <= _MOST)
        if dims:
            others = (*given[:index], *given[index + 1 :])
            found.append(_Launch(match.start("how"), match["how"], others, dims))
    return found


def _compared(host: str) -> Iterator[int]:
    for match in _SWITCH.finditer(host):
        end = closing(host, match.end())
        over = host[match.end() + 1 : end - 1].strip()
        opening = host.find("{", end)
        if opening >= 0 and _is_head_dim(over):
            yield from map(int, _CASE.findall(host[opening : closing(host, opening)]))
    for name, number in _EQUALS.findall(host):
        if is_head_dim(joined_words(name)):
            yield int(number)


def _is_head_dim(expression: str) -> bool:
    words = re.findall(r"\w+", expression)
    named = bool(words) and is_head_dim(joined_words(words[-1]))
    return named or _LAST_AXIS.search(expression) is not None
