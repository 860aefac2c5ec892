"""Instrument a kernel's source for the check build, and record which statements are executed.

The preprocessed text is changed within its lines, before any optimisation, so that every line is
exact. A *mark* is set when control reaches it; consecutive statements that always run together
share one. Local variables are initialised with a pattern of `native/host_checks.h`: a kernel whose
output depends on the pattern uses an uninitialised variable.

The parser finds the ends of statements and declarations; code that it does not understand is not
changed and gets no mark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.base.units import line_ranges
from engine.cuda_on_host.ptx.grammar import Token, read_tokens
from engine.cuda_source.host_code import COMMENT_OR_LITERAL

# Executed statements of a kernel's source, from the check build.


@dataclass(frozen=True, slots=True)
class ExecutedStatements:
    """The statements of one build, and those that were executed."""

    # (mark, file, first line, last line); statements that run together share a mark
    statements: tuple[tuple[int, str, int, int], ...]
    not_compiled: tuple[tuple[str, int, int], ...]  # (file, first line, last line), by `#if`
    marks: frozenset[int]  # marks that were reached

    def __or__(self, other: ExecutedStatements) -> ExecutedStatements:
        """Combine two executions of the same build."""
        return ExecutedStatements(self.statements, self.not_compiled, self.marks | other.marks)


MAX_MARKS = 16384  # coh::MAX_MARKS of native/host_runtime.h

_BRACKETS = {"(": ")", "[": "]", "{": "}"}
_CLASS_KEYWORDS = ("struct", "class", "union", "enum")
_WITH_HEADER = ("if", "for", "while", "switch")
# Statements that execute nothing.
_NOT_EXECUTED = ("using", "typedef", "static_assert", "constexpr", "extern", *_CLASS_KEYWORDS)
# Words that do not begin a variable's type.
_NO_TYPE = frozenset(
    "return break continue goto case default throw delete new static const asm __asm __asm__ else "
    "this operator template auto using typedef static_assert constexpr extern struct class union "
    "enum namespace if for while switch do".split()
)
_TYPE_WORDS = frozenset(
    "unsigned signed long short int char float double bool volatile typename".split()
)


@dataclass
class _Notes:
    """The added code and the source map."""

    inserted: list[tuple[int, str]] = field(default_factory=list)  # (position in the text, code)
    statements: list[tuple[int, str, int, int]] = field(default_factory=list)
    local_variables: list[tuple[str, int, str]] = field(default_factory=list)
    num_marks: int = 0


def instrument(text: str, sources: Mapping[str, str]) -> str:
    """Mark the statements and fill the local variables of `sources`.

    Args:
        text: the output of `-E`, with line markers.
        sources: file name → its text before the preprocessor.

    Returns:
        The text with its source map, the string `coh_source_map`: JSON of `statements` (mark, file,
        first line, last line), `not_compiled` (file, first line, last line) and `locals` (file,
        line, name), which are numbered in this order.
    """
    length = {name: source.count("\n") + 1 for name, source in sources.items()}
    # The code that the build appends comes after the source's last line.
    tokens = [t for t in read_tokens(text, sources) if t.line <= length[t.file]]
    notes = _Notes()
    _Parser(tokens, notes).definitions(0, len(tokens))
    pieces, done = [], 0
    for position, code in sorted(notes.inserted, key=lambda item: item[0]):  # stable
        pieces += [text[done:position], code]
        done = position
    pieces.append(text[done:])
    source_map = {
        "statements": notes.statements,
        "not_compiled": _not_compiled(tokens, sources),
        "locals": notes.local_variables,
    }
    literal = json.dumps(json.dumps(source_map, separators=(",", ":")))
    visible = '__attribute__((visibility("default")))'
    pieces.append(f'\nextern "C" {visible} const char coh_source_map[] = {literal};\n')
    return "".join(pieces)


class _Parser:
    def __init__(self, tokens: Sequence[Token], notes: _Notes) -> None:
        self._tokens = tokens
        self._notes = notes
        self._closing: dict[int, int] = {}
        opened: list[int] = []
        for at, token in enumerate(tokens):
            if token.kind != "other":
                continue
            if token.text in _BRACKETS:
                opened.append(at)
            elif token.text in _BRACKETS.values():
                while opened and _BRACKETS[tokens[opened[-1]].text] != token.text:
                    opened.pop()
                if opened:
                    self._closing[opened.pop()] = at

    def _text(self, at: int) -> str:
        token = self._tokens[at] if at < len(self._tokens) else None
        return token.text if token is not None and token.kind in ("word", "other") else ""

    def _behind(self, at: int) -> int:
        """Return the number of the token after the closing bracket of the one at `at`."""
        return self._closing.get(at, len(self._tokens)) + 1

    def _end_of_statement(self, at: int, end: int) -> int:
        """Return the number of the semicolon that ends the statement at `at`, or `end`."""
        while at < end and self._text(at) != ";":
            at = self._behind(at) if self._text(at) in _BRACKETS else at + 1
        return at

    # ---- namespaces, classes and functions ----

    def definitions(self, at: int, end: int) -> None:
        """Instrument the functions among tokens `at` to `end`, which are outside of any
        function."""
        begin = at
        while at < end:
            text = self._text(at)
            if text in ("(", "["):
                at = self._behind(at)
            elif text == "{":
                behind = min(self._behind(at), end)
                self._braces(self._head(begin, at), at, behind - 1)
                begin = at = behind
            else:
                at += 1
                if text in (";", "}") or (text == ":" and at - begin <= 2):
                    begin = at

    def _head(self, at: int, end: int) -> list[str]:
        """Return the words before a brace, without parentheses and `template <...>`."""
        words: list[str] = []
        while at < end:
            if self._text(at) == "template" and self._text(at + 1) == "<":
                at = self._behind_angles(at + 1)
                continue
            words.append(self._text(at))
            at = self._behind(at) if words[-1] in _BRACKETS else at + 1
        return words

    def _braces(self, head: list[str], opened: int, closed: int) -> None:
        is_function = "(" in head
        is_class = bool(set(head) & set(_CLASS_KEYWORDS)) and (
            not is_function or self._text(opened - 1) != ")"
        )
        if "enum" in head or ("=" in head and "operator" not in head):
            return
        if is_class or "namespace" in head or (head[:1] == ["extern"] and not is_function):
            self.definitions(opened + 1, closed)
        elif is_function and not {"constexpr", "consteval"} & set(head):
            self._block(opened, closed)

    # ---- statements ----

    def _block(self, opened: int, closed: int) -> None:
        """Instrument the statements between two braces."""
        at = opened + 1
        mark = None  # shared with the statements before if control cannot have left
        while at < closed:
            at, mark = self._statement(at, closed, mark)

    def _statement(self, at: int, end: int, mark: int | None) -> tuple[int, int | None]:
        """Instrument the statement at `at`; return (next token, mark that its successor shares)."""
        text = self._text(at)
        if text == ";":
            return at + 1, mark
        if text == "{":
            self._block(at, self._closing.get(at, end))
            return self._behind(at), None
        if text in ("case", "default") or (
            self._tokens[at].kind == "word" and self._text(at + 1) == ":"
        ):
            while at < end and self._text(at) != ":":
                at = self._behind(at) if self._text(at) in _BRACKETS else at + 1
            return at + 1, None
        if text in _WITH_HEADER:
            header = at + 2 if self._text(at + 1) == "constexpr" else at + 1
            behind = self._behind(header)
            self._mark(at, behind - 1, mark)
            at = self._nested(behind - 1, end)
            while text == "if" and self._text(at) == "else":
                at = self._nested(at, end)
            return at, None
        if text == "do":
            self._mark(at, at, mark)
            return self._end_of_statement(self._nested(at, end), end) + 1, None
        semicolon = self._end_of_statement(at, end)
        if text not in _NOT_EXECUTED:
            mark = self._mark(at, semicolon, mark)
            self._fill_locals(at, semicolon)
        leaves = text in ("return", "break", "continue", "goto")
        return semicolon + 1, None if leaves else mark

    def _nested(self, before: int, end: int) -> int:
        """Instrument the statement of a loop or an if, whose header ends with token `before`."""
        at = before + 1
        if self._text(at) == "{" or at >= end:
            return self._statement(at, end, None)[0] if at < end else at
        self._insert(before, " {")
        at = self._statement(at, end, None)[0]
        self._insert(at - 1, " }")
        return at

    def _insert(self, behind: int, code: str) -> None:
        # After the previous token, because a pragma may come between it and the statement.
        self._notes.inserted.append((self._tokens[behind].end, code))

    def _mark(self, first: int, last: int, mark: int | None) -> int:
        notes = self._notes
        if mark is None:
            mark = notes.num_marks
            notes.num_marks += 1
            if mark < MAX_MARKS:
                self._insert(first - 1, f" coh::reached({mark});")
        if mark < MAX_MARKS:
            begin, end = self._tokens[first], self._tokens[min(last, len(self._tokens) - 1)]
            end_line = end.line if end.file == begin.file else begin.line
            notes.statements.append((mark, begin.file, begin.line, max(begin.line, end_line)))
        return mark

    def _fill_locals(self, at: int, semicolon: int) -> None:
        """Initialise each variable of `type name[n], other;`; do nothing for another statement.

        The lifetime of variables with an initialiser is recorded, too."""
        at += self._text(at) == "const"
        type_end = at + 1 if self._text(at) == "auto" else self._end_of_type(at)
        if type_end is None:
            return
        names: list[int] = []
        given: list[int] = []
        position = type_end
        while position < semicolon:
            if self._tokens[position].kind != "word":
                return
            name = position
            position += 1
            while self._text(position) == "[":
                position = self._behind(position)
            if self._text(position) == "=":
                given.append(name)
                while position < semicolon and self._text(position) != ",":
                    inside = self._text(position) in _BRACKETS
                    position = self._behind(position) if inside else position + 1
            else:
                names.append(name)
            if position < semicolon and self._text(position) != ",":
                return
            position += 1
        for name in names:
            token = self._tokens[name]
            number = len(self._notes.local_variables)
            self._notes.local_variables.append((token.file, token.line, token.text))
            self._insert(semicolon, f" coh::fill_local({token.text}, {number});")
        for name in given:
            self._insert(semicolon, f" coh::begin_local({self._tokens[name].text});")

    def _end_of_type(self, at: int) -> int | None:
        """Return the token after a type's name; None if there is no type."""
        if self._tokens[at].kind != "word" or self._text(at) in _NO_TYPE:
            return None
        words = 0
        while self._text(at) in _TYPE_WORDS:
            words += self._text(at) not in ("volatile", "typename")
            at += 1
        if not words:
            if self._tokens[at].kind != "word" or self._text(at) in _NO_TYPE:
                return None
            at += 1
            while self._text(at) in ("::", "<"):
                if self._text(at) == "<":
                    at = self._behind_angles(at)
                else:
                    at += 2
        return at if at < len(self._tokens) and self._tokens[at].kind == "word" else None

    def _behind_angles(self, at: int) -> int:
        depth = 0
        while at < len(self._tokens) and self._text(at) not in (";", "{", "}"):
            if self._text(at) == "(":
                at = self._behind(at)
                continue
            depth += (self._text(at) == "<") - (self._text(at) == ">")
            at += 1
            if depth == 0:
                break
        return at


# ---- lines that the preprocessor removed ----

_COMMENT_OR_LITERAL = re.compile(COMMENT_OR_LITERAL, re.DOTALL)
_DIRECTIVE = re.compile(r"\s*#\s*(if|ifdef|ifndef|elif|else|endif)\b")


def _not_compiled(
    tokens: Sequence[Token], sources: Mapping[str, str]
) -> list[tuple[str, int, int]]:
    """Return (file, first line, last line) of `#if` branches without any token."""
    kept: dict[str, set[int]] = {name: set() for name in sources}
    for token in tokens:
        kept[token.file].add(token.line)
    ranges = []
    for name, source in sources.items():
        for lines in _branches(source):
            if lines and not kept[name] & set(lines):
                ranges += [(name, first, last) for first, last in line_ranges(lines)]
    return sorted(ranges)


def _branches(source: str) -> list[list[int]]:
    """Yield the code lines of each `#if` branch, without those of nested branches."""

    def blank(match: re.Match[str]) -> str:
        text = match[0]
        return "\n" * text.count("\n") if text.startswith("/") else text

    done: list[list[int]] = []
    open_branches: list[list[int]] = []
    continued = False
    for number, line in enumerate(_COMMENT_OR_LITERAL.sub(blank, source).splitlines(), 1):
        directive = _DIRECTIVE.match(line)
        if directive is not None and not continued:
            if directive[1] in ("elif", "else", "endif") and open_branches:
                done.append(open_branches.pop())
            if directive[1] != "endif":
                open_branches.append([])
        is_directive = continued or line.lstrip().startswith("#")
        if line.strip() and not is_directive and open_branches:
            open_branches[-1].append(number)
        continued = is_directive and line.rstrip().endswith("\\")
    return done
