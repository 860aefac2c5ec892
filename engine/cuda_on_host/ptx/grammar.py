"""The `asm` statements of preprocessed C++: where they stand, their text and their operands."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from engine.base.errors import CompileError

ASM_KEYWORDS = ("asm", "__asm", "__asm__")
_QUALIFIERS = ("volatile", "__volatile", "__volatile__", "inline")


@dataclass(frozen=True, slots=True)
class Token:
    kind: str  # word, string, raw, number, character, other
    text: str
    start: int  # position in the preprocessed text
    end: int
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class AsmOperand:
    constraint: str  # "+f"
    expression: str


@dataclass(frozen=True, slots=True)
class AsmStatement:
    file: str
    line: int  # of the keyword
    template: str
    outputs: tuple[AsmOperand, ...]
    inputs: tuple[AsmOperand, ...]
    start: int  # of the keyword, in the preprocessed text
    end: int  # behind the closing parenthesis
    last_line: int

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"


_LINE_MARKER = r'^\#[ \t]+(?P<line>\d+)[ \t]+"(?P<file>(?:\\.|[^"\\])*)"[^\n]*'
_TOKEN = re.compile(
    rf"""(?P<marker>{_LINE_MARKER})
    | (?P<directive>^[ \t]*\#[^\n]*)
    | (?P<raw>(?:u8|[uUL])?R"(?P<bracket>[^()\\\s]*)\(.*?\)(?P=bracket)")
    | (?P<string>"(?:\\.|[^"\\\n])*")
    | (?P<character>'(?:\\.|[^'\\\n])+')
    | (?P<number>\.?\d(?:[eEpP][+-]|'?[\w.])*)
    | (?P<word>[A-Za-z_]\w*)
    | (?P<newline>\n)
    | (?P<space>[ \t\f\v\r]+)
    | (?P<other>::|.)""",
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
_NO_TOKENS = ("marker", "directive", "newline", "space")


def read_tokens(text: str, files: Collection[str]) -> list[Token]:
    """The tokens that come from `files`; what other headers hold is skipped unread."""
    tokens: list[Token] = []
    markers = list(re.finditer(_LINE_MARKER, text, re.MULTILINE))
    ends = [marker.start() for marker in markers[1:]] + [len(text)]
    for marker, end in zip(markers, ends, strict=True):
        file = marker["file"].removeprefix("./")
        if file not in files:
            continue
        line = int(marker["line"]) - 1  # the marker's own newline comes first
        for match in _TOKEN.finditer(text, marker.end(), end):
            # `bracket` is a group inside of `raw`, so `lastgroup` would name it.
            kind = "raw" if match["raw"] else match.lastgroup or "other"
            if kind == "newline":
                line += 1
            if kind not in _NO_TOKENS:
                tokens.append(Token(kind, match[0], match.start(), match.end(), file, line))
            if kind == "raw":
                line += match[0].count("\n")
    return tokens


def parse_statement(tokens: list[Token], at: int) -> tuple[AsmStatement, int]:
    """The statement whose keyword is token `at`, and the number of the token behind it.

    Raises:
        CompileError: it is no `asm ("..." : outputs : inputs : clobbers)`.
    """
    first = tokens[at]
    where = f"{first.file}:{first.line}"
    at += 1
    while tokens[at].text in _QUALIFIERS:
        at += 1
    sections, at = _split_sections(tokens, at, where)
    if any(t.kind not in ("string", "raw") for t in sections[0][0]) or len(sections[0]) != 1:
        raise CompileError(f"{where}: the text of this asm statement is not a string literal.")
    sections += [[[]]] * (4 - len(sections))
    outputs, inputs = (
        tuple(_parse_operand(operand, where) for operand in section if operand)
        for section in sections[1:3]
    )
    for operand in outputs + inputs:
        if operand.constraint.startswith(("=", "+")) != (operand in outputs):
            raise CompileError(
                f'{where}: constraint "{operand.constraint}" of this asm statement stands among '
                f"the {'outputs' if operand in outputs else 'inputs'}: outputs begin with = or +."
            )
    last = tokens[at - 1]
    template = "".join(_string_value(token) for token in sections[0][0])
    statement = AsmStatement(
        first.file, first.line, template, outputs, inputs, first.start, last.end, last.line
    )
    return statement, at


def _split_sections(
    tokens: list[Token], at: int, where: str
) -> tuple[list[list[list[Token]]], int]:
    """The tokens in the parentheses from `at` on: by section (`:`), then by operand (`,`)."""
    sections: list[list[list[Token]]] = [[[]]]
    depth = 0
    while at < len(tokens):
        token = tokens[at]
        at += 1
        depth += (token.text in ("(", "[", "{")) - (token.text in (")", "]", "}"))
        if depth == 0:
            return sections, at
        if depth == 1 and token.text in (":", "::"):
            sections += [[[]] for _ in token.text]
        elif depth == 1 and token.text == ",":
            sections[-1].append([])
        elif depth > 1 or token.text != "(":
            sections[-1][-1].append(token)
    raise CompileError(f"{where}: this asm statement has no end.")


def _parse_operand(tokens: list[Token], where: str) -> AsmOperand:
    if tokens[0].kind != "string" or len(tokens) < 4 or tokens[1].text != "(":
        text = " ".join(token.text for token in tokens)
        raise CompileError(f'{where}: an asm operand is written "constraint"(expression): `{text}`')
    return AsmOperand(_string_value(tokens[0]), _source_text(tokens[2:-1]))


def _source_text(tokens: list[Token]) -> str:
    """The tokens on one line; those of `->` or `<<` stay together."""
    pieces = []
    for before, token in zip([None, *tokens], tokens, strict=False):
        pieces.append("" if before is None or before.end == token.start else " ")
        pieces.append(token.text)
    return "".join(pieces)


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "v": "\v", "f": "\f"}


def _string_value(token: Token) -> str:
    if token.kind == "raw":
        begin, end = token.text.index("("), token.text.rindex(")")
        return token.text[begin + 1 : end]
    return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), token.text[1:-1], flags=re.DOTALL)


# PTX text → the steps it consists of. Operands stay text: instructions give them a meaning.


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
