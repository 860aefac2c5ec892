"""Execute inline PTX: `asm` statements of a preprocessed kernel become calls of the runtime.

`grammar` finds them in the C++ and parses the PTX; `table/` has the supported instructions; `emit`
writes the C++ that replaces a statement.

Kernels keep PTX in small functions, so an error names the line of the function's caller: such
functions get a last parameter whose default is the caller's line, like the runtime's own functions.
If that is not possible (kernels, lambdas, variadic and virtual functions, functions that are
declared before their definition or whose address is taken), errors name the statement itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from engine.base.errors import CompileError
from engine.cuda_on_host.ptx.emit import emit_statement
from engine.cuda_on_host.ptx.grammar import ASM_KEYWORDS, Token, parse_statement, read_tokens

__all__ = ["has_asm", "translate_asm"]


OWN_LINE = "coh::Site::here()"
CALLERS_LINE = "coh_site"
_NO_FUNCTION = ("namespace", "class", "struct", "union", "enum", "extern")
_NO_NAME = ("__attribute__", "noexcept", "alignas", "sizeof", "decltype", "if", "for", "while",
            "switch", "operator")  # fmt: skip


@dataclass(frozen=True, slots=True)
class CallSite:
    expression: str
    parameter: tuple[int, str] | None = None  # to insert: (position in the text, code)


def find_call_site(
    tokens: list[Token], open_braces: list[int], kernels: Collection[str] = ()
) -> CallSite:
    """Find the call site that errors of a statement name.

    Args:
        tokens: of the preprocessed source.
        open_braces: token numbers of the braces around the statement, outermost first.
        kernels: names of launched functions, which keep their parameters.
    """
    for number, brace in enumerate(open_braces):
        header = _header(tokens, brace)
        if not header or header[0].text in _NO_FUNCTION:
            continue
        parameters = _parameters(header)
        if parameters is None:
            continue
        name, begin, end = parameters
        inner = open_braces[number + 1 :]
        if (
            name in kernels
            or any(_is_lambda(tokens, b) for b in inner)
            or not _can_change(tokens, header, name)
        ):
            break
        comma = "" if begin + 1 == end else ", "
        text = f"{comma}coh::Site {CALLERS_LINE} = {OWN_LINE}"
        return CallSite(CALLERS_LINE, (header[end].start, text))
    return CallSite(OWN_LINE)


def _header(tokens: list[Token], brace: int) -> list[Token]:
    """Return the tokens before a `{`, from the end of the previous statement."""
    begin = brace
    while begin and tokens[begin - 1].text not in ("{", "}", ";"):
        begin -= 1
    return tokens[begin:brace]


def _parameters(header: list[Token]) -> tuple[str, int, int] | None:
    """Return a function's name, and where its parameter list opens and closes."""
    depth = 0
    begin: int | None = None
    for number, token in enumerate(header):
        if token.text == "(":
            depth += 1
            before = header[number - 1] if number else None
            is_name = before is not None and before.kind == "word" and before.text not in _NO_NAME
            if depth == 1 and begin is None and is_name:
                begin = number
        elif token.text == ")":
            depth -= 1
            if depth == 0 and begin is not None:
                return header[begin - 1].text, begin, number
    return None


def _can_change(tokens: list[Token], header: list[Token], name: str) -> bool:
    words = {token.text for token in header}
    if words & {
        ".",
        "~",
        "virtual",
        "override",
    }:  # or variadic, or a destructor
        return False
    uses = [n for n, token in enumerate(tokens) if token.text == name and token.kind == "word"]
    is_called = all(tokens[n + 1].text in ("(", "<") for n in uses if n + 1 < len(tokens))
    declared = [n for n in uses if _is_declared_at(tokens, n)]
    return is_called and bool(declared) and all(_is_defined_at(tokens, n) for n in declared)


def _is_declared_at(tokens: list[Token], number: int) -> bool:
    """True if the name follows a type, as in a declaration but not in a call."""
    before = tokens[number - 1]
    if before.kind == "word":
        return before.text not in ("return", "else", "do", "case")
    return before.text in ("*", "&", ">")


def _is_defined_at(tokens: list[Token], number: int) -> bool:
    """True if a body follows the parameters of the function with this name.

    A specialization `f<3>(...)` has to keep the parameters of its template.
    """
    depth, at = 0, number + 1
    if tokens[at].text != "(":
        return False
    while at < len(tokens):
        depth += (tokens[at].text == "(") - (tokens[at].text == ")")
        if depth == 0 and tokens[at].text in ("{", ";"):
            return tokens[at].text == "{"
        at += 1
    return False


def _is_lambda(tokens: list[Token], brace: int) -> bool:
    """True if `]` or `](...)` is before the brace."""
    number = brace - 1
    while tokens[number].kind == "word":  # mutable, noexcept
        number -= 1
    if tokens[number].text == ")":
        depth = 1
        while depth and number:
            number -= 1
            depth += (tokens[number].text == ")") - (tokens[number].text == "(")
        number -= 1
    return tokens[number].text == "]"


# Translates preprocessed C++ with `asm` statements to C++ that executes them; keeps line numbers.


_ASM = re.compile(rf"\b(?:{'|'.join(ASM_KEYWORDS)})\b")


def has_asm(text: str) -> bool:
    """True if C++ source may have `asm` statements."""
    return _ASM.search(text) is not None


def translate_asm(text: str, files: Collection[str], entries: Collection[str] = ()) -> str:
    """Replace the `asm` statements of `files` in the output of `-E` with line markers.

    Args:
        entries: the kernels, as name expressions.

    Raises:
        CompileError: `file.cu:line`, the PTX that cannot be executed, and what to do.
    """
    kernels = {entry.partition("<")[0].rpartition("::")[2].strip() for entry in entries}
    tokens = read_tokens(text, files)
    edits: list[tuple[int, int, str]] = []  # from, to, replacement
    parameters: set[tuple[int, str]] = set()
    open_braces: list[int] = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        if token.text == "{":
            open_braces.append(at)
        elif token.text == "}" and open_braces:
            open_braces.pop()
        elif token.kind == "word" and token.text in ASM_KEYWORDS:
            statement, behind = parse_statement(tokens, at)
            if not open_braces:
                raise CompileError(
                    f"{statement.where}: the CPU backend executes asm statements inside of "
                    "functions alone: move this one into a __device__ function."
                )
            site = find_call_site(tokens, open_braces, kernels)
            if site.parameter is not None:
                parameters.add(site.parameter)
            code = emit_statement(statement, site.expression)
            # Markers on both sides, because a statement of several lines becomes one.
            before = f'\n# {statement.line} "{statement.file}"\n'
            after = f'\n# {statement.last_line} "{statement.file}"\n'
            edits.append((statement.start, statement.end, f"{before}{code}{after}"))
            at = behind
            continue
        at += 1
    edits += [(position, position, parameter) for position, parameter in parameters]
    pieces = []
    done = 0
    for begin, end, replacement in sorted(edits):
        pieces += [text[done:begin], replacement]
        done = end
    return "".join([*pieces, text[done:]])
