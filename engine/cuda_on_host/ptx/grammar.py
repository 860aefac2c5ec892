"""Parse `asm` statements of preprocessed C++, and the forms of PTX instructions that execute
them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from engine.base.errors import CompileError
from engine.cuda_source.host_code import split_commas

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
    end: int  # after the closing parenthesis
    last_line: int

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"


_LINE_MARKER = r'^\#[ \t]+(?P<line>\d+)[ \t]+"(?P<file>(?:\\.|[^"\\])*)"[^\n]*'
_TOKEN = re.compile(
    rf"""(?P<marker>{_LINE_MARKER})
    | (?P<directive>^[ \t]*\#[^\n]*)
    | (?P<raw>(?:u8|[uUL])?R"(?P<bracket>[^()\\\s]{{0,16}})\(.*?(?:\)(?P=bracket)"|\Z))
    | (?P<string>"(?:\\.|[^"\\\n])*"?)
    | (?P<character>'(?:\\.|[^'\\\n])+'?)
    | (?P<number>\.?\d(?:[eEpP][+-]|'?[\w.])*)
    | (?P<word>[A-Za-z_]\w*)
    | (?P<newline>\n)
    | (?P<space>[ \t\f\v\r]+)
    | (?P<other>::|.)""",
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
_NO_TOKENS = ("marker", "directive", "newline", "space")


def read_tokens(text: str, files: Collection[str]) -> list[Token]:
    """Return the tokens from `files`; other headers are skipped."""
    tokens: list[Token] = []
    markers = list(re.finditer(_LINE_MARKER, text, re.MULTILINE))
    ends = [marker.start() for marker in markers[1:]] + [len(text)]
    for marker, end in zip(markers, ends, strict=True):
        file = marker["file"].removeprefix("./")
        if file not in files:
            continue
        line = int(marker["line"]) - 1  # the marker's own newline comes first
        for match in _TOKEN.finditer(text, marker.end(), end):
            # `bracket` is a group within `raw`, so `lastgroup` would name it.
            kind = "raw" if match["raw"] else match.lastgroup or "other"
            if kind == "newline":
                line += 1
            if kind not in _NO_TOKENS:
                tokens.append(Token(kind, match[0], match.start(), match.end(), file, line))
            if kind == "raw":
                line += match[0].count("\n")
    return tokens


def parse_statement(tokens: list[Token], at: int) -> tuple[AsmStatement, int]:
    """Return the statement whose keyword is token `at`, and the number of the token after it.

    Raises:
        CompileError: it is not `asm ("..." : outputs : inputs : clobbers)`.
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
    """Return the tokens in the parentheses at `at` by section (`:`), then by operand (`,`)."""
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
    """Return the tokens on one line; those of `->` or `<<` stay together."""
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


# Parses PTX text to steps. Operands stay text, because their meaning depends on the instruction.


class PtxSyntaxError(Exception):
    """`text` is the PTX that cannot be parsed."""

    def __init__(self, problem: str, text: str) -> None:
        super().__init__(problem)
        self.text = " ".join(text.split())


@dataclass(frozen=True, slots=True)
class OpenScope:
    labels: tuple[str, ...]  # labels in it, outside nested scopes


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
_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
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
    """Return the steps of an asm statement's text.

    Raises:
        PtxSyntaxError: names the part that cannot be parsed.
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
            operands = tuple(filter(None, split_commas(match["operands"])))
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


# A form: syntax as in the PTX manual, its operands, and the C++ that executes it.
#
#     ldmatrix.sync.aligned.m8n8.x<n:1|2|4>[.trans].<shared|shared::cta>.b16
#         =d:b32[n] a:shared -> coh::ldmatrix(d, $n, $trans, a, coh_here);
#
# The syntax has `<name:a|b>` for a choice, `[...]` for an optional part, and is otherwise literal.
# `$name` in the code is the choice ("none" if omitted), and `$trans` whether `[.trans]` was given;
# `$t` of a type is its C++ type, `$=t` its name in PTX.
#
# Operands, in order: `=d:t` is an output and `a:t` an input of type `t` (a PTX type, or a group's
# name); `[n]` makes it a vector in braces, a C++ array. Other kinds:
#     a:shared, a:cluster (shared::cluster), a:global  an address in brackets, `char *`;
#                         a:@space: the one the group `space` names
#     a:imm               an integer constant
#     a:tensor[n]         tensor map and coordinates `[map, {x, y}]`: `a` and `a_at`
#     ~d:f32[n]           an accumulator that is written later: `float *` to the operands themselves
#     =p:pred|q:pred      a second output that may be left out
#     a:u32=31            may be left out, and is 31 then
#     a:b64?hint          is there only when the group `hint` is
# Code that does not end in `;` is an expression for the first output. `ptx::` is the runtime's
# coh::ptx, `coh_here` the line of source, and `coh_carry` the condition code of .cc.

# PTX type -> (C++ type, bits). f16 and similar types are the runtime's.
TYPES: dict[str, tuple[str, int]] = {
    "pred": ("bool", 1),
    **{f"{kind}{bits}": (f"{'' if kind == 's' else 'u'}int{bits}_t", bits)
       for kind in "bus" for bits in (8, 16, 32, 64)},
    "b128": ("unsigned __int128", 128),
    "f32": ("float", 32), "f64": ("double", 64), "tf32": ("float", 32),
    "f16": ("coh::ptx::F16", 16), "bf16": ("coh::ptx::BF16", 16),
    "f16x2": ("coh::ptx::F16x2", 32), "bf16x2": ("coh::ptx::BF16x2", 32),
    "e4m3x2": ("coh::ptx::E4M3x2", 16), "e5m2x2": ("coh::ptx::E5M2x2", 16),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class OperandForm:
    name: str
    direction: str  # "" (input), "=", "~" (added to later) or "&" (read later, too)
    kind: str  # a type, a group's name, shared, cluster, global, @group, imm, tensor
    count: str = ""  # size of a vector: a number, a group's name or group/2
    default: str | None = None
    needs: str = ""  # the group that it requires
    second: OperandForm | None = None  # of `d|p`


@dataclass(frozen=True, slots=True)
class Match:
    """A form and the values of its groups."""

    form: Form
    groups: dict[str, str]

    def count(self, operand: OperandForm) -> int | None:
        """Return the number of elements of a vector operand; None for a single one."""
        if not operand.count:
            return None
        name, _, divisor = operand.count.partition("/")
        value = self.groups.get(name, name)
        return 1 if value == "none" else int(value) // int(divisor or 1)

    def kind_of(self, operand: OperandForm) -> str:
        """Return a type, shared, cluster, global, imm or tensor."""
        if operand.kind.startswith("@"):
            space = self.groups[operand.kind[1:]]
            if space == "shared::cluster":
                return "cluster"
            return "shared" if space.startswith("shared") else "global"
        if operand.kind in (*TYPES, "shared", "cluster", "global", "imm", "tensor"):
            return operand.kind
        return self.groups[operand.kind]

    def operands(self) -> list[OperandForm]:
        """Operands of the form with their values for this match."""
        return [o for o in self.form.operands if not o.needs or self.groups[o.needs] != "false"]

    def code(self) -> str:
        """Return the C++ with `$name` replaced."""

        def value(match: re.Match[str]) -> str:
            text = self.groups[match[2]]
            return TYPES[text][0] if text in TYPES and not match[1] else text

        code = re.sub(r"\$(=?)(\w+)", value, self.form.code)
        return re.sub(r"(?<![\w:])ptx::", "coh::ptx::", code)


@dataclass(frozen=True)
class Form:
    syntax: str
    operand_text: str
    code: str
    operands: tuple[OperandForm, ...] = field(init=False)

    def __post_init__(self) -> None:
        parsed = tuple(_parse_operand_form(text) for text in self.operand_text.split())
        object.__setattr__(self, "operands", parsed)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(_to_regex(self.syntax))

    @property
    def opcodes(self) -> list[str]:
        first = re.match(r"<(?P<choices>[^>]*)>|(?P<only>\w+)", self.syntax)
        assert first is not None
        return (first["choices"] or first["only"]).split("|")

    @cached_property
    def _parts(self) -> list[tuple[re.Pattern[str], bool]]:
        """Return the parts between dots, and whether each is optional."""
        parts: list[tuple[re.Pattern[str], bool]] = []
        for match in _PART.finditer(self.syntax):
            text, may_be_left_out = match["left_out"] or match["there"], match["left_out"]
            for part in re.findall(r"(?:<[^>]*>|[^.<>])+", text):
                parts.append((re.compile(_to_regex(part)), may_be_left_out is not None))
        return parts

    def in_order(self, name: str) -> str | None:
        """Return the name with modifiers in the syntax's order; None if it is not this form.

        ptxas accepts any order, except among modifiers of one kind: types, state spaces, row and
        col.
        """
        opcode, *modifiers = name.split(".")

        def place(number: int, left: list[str]) -> list[str] | None:
            if number == len(self._parts):
                return None if left else []
            part, may_be_left_out = self._parts[number]
            kinds: set[str] = set()
            for index, modifier in enumerate(left):
                kind = _kind_of_modifier(modifier)
                if kind in kinds:
                    continue  # another of its kind comes first
                kinds |= {kind} if kind else set()
                if not part.fullmatch(modifier):
                    continue
                rest = place(number + 1, [*left[:index], *left[index + 1 :]])
                if rest is not None:
                    return [modifier, *rest]
            return place(number + 1, left) if may_be_left_out else None

        if not self._parts[0][0].fullmatch(opcode):
            return None
        placed = place(1, modifiers)
        return None if placed is None else ".".join([opcode, *placed])

    def match(self, name: str) -> Match | None:
        match = self._pattern.fullmatch(name)
        if match is None:
            return None
        flags = {m[1] for m in re.finditer(_FLAG, self.syntax)}
        groups = {
            key: ("false" if value is None else "true")
            if key in flags
            else ("none" if value is None else value)
            for key, value in match.groupdict().items()
        }
        return Match(self, groups)


# `[.trans]`, `.<n:1|2|4>`, `.m8n8`, and the opcode.
_PART = re.compile(r"\[\.(?P<left_out>[^\[\]]+)\]|\.?(?P<there>(?:<[^>]*>|[^.\[\]<>])+)")


def _kind_of_modifier(modifier: str) -> str:
    """Return the kind of a modifier; order matters within one: `.f16.f32`, `.row.col`."""
    if modifier in TYPES:
        return "type"
    if modifier.partition("::")[0] in ("shared", "global", "const", "local", "param"):
        return "space"
    return "major" if modifier in ("row", "col") else ""


_FLAG = r"\[(?:\.\w+::|\.)(\w+)\]"  # [.trans], [.L2::cache_hint]
_SYNTAX = re.compile(
    rf"(?P<flag>{_FLAG})|<(?:(?P<group>\w+):(?!:))?(?P<choices>[^<>]*)>|(?P<bracket>[\[\]])"
    r"|(?P<literal>[^<>\[\]]+)"
)


def _to_regex(syntax: str) -> str:
    pieces = []
    for part in _SYNTAX.finditer(syntax):
        if part["flag"]:
            name = re.fullmatch(_FLAG, part["flag"])
            assert name is not None
            pieces.append(f"(?P<{name[1]}>{re.escape(part['flag'][1:-1])})?")
        elif part["choices"]:
            choices = "|".join(re.escape(choice) for choice in part["choices"].split("|"))
            pieces.append(f"(?P<{part['group']}>{choices})" if part["group"] else f"(?:{choices})")
        elif part["bracket"]:
            pieces.append("(?:" if part["bracket"] == "[" else ")?")
        else:
            pieces.append(re.escape(part["literal"]))
    return "".join(pieces)


_OPERAND = re.compile(
    r"(?P<direction>[=~&]?)(?P<name>\w+):(?P<kind>@?\w+)(?:\[(?P<count>[\w/]+)\])?"
    r"(?:\|(?P<second>.+))?(?:=(?P<default>-?\w+))?(?:\?(?P<needs>\w+))?"
)


def _parse_operand_form(text: str) -> OperandForm:
    match = _OPERAND.fullmatch(text)
    assert match is not None, text
    return OperandForm(
        name=match["name"],
        direction=match["direction"],
        kind=match["kind"],
        count=match["count"] or "",
        default=match["default"],
        needs=match["needs"] or "",
        second=_parse_operand_form(f"={match['second']}") if match["second"] else None,
    )


# The table of all PTX instruction forms that the CPU backend executes, read from `table/`.
#
# A form is its syntax and, indented below it, its operands and the C++ after `->`; a deeper indent
# continues the previous line. Several syntaxes may share one C++. `NAME = text` defines {NAME} for
# the rest of the file, and `#` begins a comment.


TABLE = Path(__file__).with_name("table")


def _read(text: str) -> Iterator[Form]:
    names: dict[str, str] = {}
    syntaxes: list[str] = []
    for line in re.sub(r"\n {8,}", " ", text).splitlines():
        filled = re.sub(r"\{([A-Z_]+)\}", lambda match: names[match[1]], line)
        if named := re.fullmatch(r"([A-Z_]+) = (.*)", filled):
            names[named[1]] = named[2]
        elif filled.startswith(" "):
            operands, _, code = filled.strip().partition("-> ")
            yield from (Form(syntax, operands.strip(), code) for syntax in syntaxes)
            syntaxes = []
        elif filled and not filled.startswith("#"):
            syntaxes.append(filled)


def _by_opcode() -> dict[str, list[Form]]:
    table: dict[str, list[Form]] = {}
    for file in sorted(TABLE.glob("*.forms")):
        for form in _read(file.read_text(encoding="utf-8")):
            for opcode in form.opcodes:
                table.setdefault(opcode, []).append(form)
    return table


FORMS = _by_opcode()
