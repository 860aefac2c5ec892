"""PTX text → the steps it consists of. Operands stay text: instructions give them a meaning."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias


class PtxSyntaxError(Exception):
    """`text` is the PTX that is not understood."""

    def __init__(self, problem: str, text: str) -> None:
        super().__init__(problem)
        self.text = " ".join(text.split())


@dataclass(frozen=True, slots=True)
class OpenScope:
    labels: tuple[str, ...]  # that stand in it, outside of inner scopes


@dataclass(frozen=True, slots=True)
class CloseScope:
    pass


@dataclass(frozen=True, slots=True)
class Label:
    name: str


@dataclass(frozen=True, slots=True)
class Declaration:
    type: str  # "b32"
    names: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Instruction:
    guard: str  # "", "p" or "!p"
    name: str  # opcode and modifiers: "mma.sync.aligned.m16n8k16..."
    operands: tuple[str, ...]
    text: str

    @property
    def opcode(self) -> str:
        return self.name.partition(".")[0]


Step: TypeAlias = OpenScope | CloseScope | Label | Declaration | Instruction

_NAME = r"[A-Za-z_$%][\w$]*"
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_STEP = re.compile(
    rf"""\s*(?:
    (?P<open>\{{) | (?P<close>\}}) | (?P<empty>;)
    | (?P<label>{_NAME})\s*:(?!:)
    | \.reg\s*\.(?P<type>\w+)\s+(?P<names>[^;]*);
    | (?:@\s*(?P<guard>!?\s*[%\w$]+)\s+)?(?P<name>[a-z][\w.:]*)(?P<operands>[^;]*?)\s*(?:;|\Z)
    )""",
    re.VERBOSE,
)
_COUNTED = re.compile(rf"({_NAME})<(\d+)>")


def parse_ptx(template: str) -> list[Step]:
    """The steps of an asm statement's text.

    Raises:
        PtxSyntaxError: names the part that is not understood.
    """
    text = _COMMENT.sub(" ", template).replace("%%", "%")
    steps: list[Step] = []
    opened: list[int] = []  # positions in `steps`
    for match in _matches(text):
        if match["open"]:
            opened.append(len(steps))
            steps.append(OpenScope(()))
        elif match["close"]:
            if not opened:
                raise PtxSyntaxError("a } without its {", text)
            opened.pop()
            steps.append(CloseScope())
        elif match["label"]:
            steps.append(Label(match["label"]))
            if opened:
                scope = steps[opened[-1]]
                assert isinstance(scope, OpenScope)
                steps[opened[-1]] = OpenScope((*scope.labels, match["label"]))
        elif match["type"]:
            names = tuple(_counted_names(match["names"]))
            steps.append(Declaration(match["type"], names, match[0].strip()))
        elif match["name"]:
            guard = re.sub(r"\s", "", match["guard"] or "")
            operands = tuple(split_commas(match["operands"]))
            steps.append(Instruction(guard, match["name"], operands, match[0].strip()))
    if opened:
        raise PtxSyntaxError("a { without its }", text)
    return steps


def _matches(text: str) -> Iterator[re.Match[str]]:
    at = 0
    while text[at:].strip():
        match = _STEP.match(text, at)
        if match is None:
            raise PtxSyntaxError("this PTX is not understood", text[at:].partition(";")[0])
        yield match
        at = match.end()


def _counted_names(text: str) -> Iterator[str]:
    """`a, b<3>` → a, b0, b1, b2."""
    for name in split_commas(text):
        if counted := _COUNTED.fullmatch(name):
            yield from (f"{counted[1]}{i}" for i in range(int(counted[2])))
        elif re.fullmatch(_NAME, name):
            yield name
        else:
            raise PtxSyntaxError("this register name is not understood", name)


def split_commas(text: str) -> list[str]:
    """Split at commas outside brackets; no empty parts."""
    parts = [""]
    depth = 0
    for character in text:
        depth += (character in "[({") - (character in "])}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]
