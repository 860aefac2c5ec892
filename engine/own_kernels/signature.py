"""The kernels of a `.cu` file as their declarations show them. Nothing is compiled."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_LAUNCH_BOUNDS = re.compile(r"__launch_bounds__\s*\(\s*(?P<threads>\w+)")
_ATTRIBUTE = re.compile(r"__(?:launch_bounds|cluster_dims|block_size)__\s*$")
_NAME = re.compile(r"(?P<name>[A-Za-z_]\w*)\s*$")
_TEMPLATE = re.compile(r"template\s*<(?P<parameters>[^{};]*)>\s*(?:extern\s*\"C\"\s*)?[^{};]*$")
_NAMESPACE = re.compile(r"\bnamespace\s+(?P<name>[\w:]+)\s*\{")
_QUALIFIER = re.compile(r"\b(?:const|volatile|__restrict__|__restrict|__grid_constant__|struct)\b")
_ALIAS = re.compile(r"\busing\s+(?P<new>\w+)\s*=\s*(?P<old>[\w:\s]+);")
_TYPEDEF = re.compile(r"\btypedef\s+(?P<old>[\w:\s]+?)\s+(?P<new>\w+)\s*;")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a kernel, of a template, or field of a structure."""

    written: str  # as the source has it, on one line
    type: str  # without qualifiers and `*`, aliases resolved: `half`, `int64_t`, `typename`
    name: str
    is_pointer: bool
    has_default: bool


@dataclass(frozen=True, slots=True)
class Signature:
    """One `__global__` function."""

    name: str  # qualified by its namespaces
    parameters: tuple[Parameter, ...]
    template: tuple[Parameter, ...]
    threads: int | None  # of __launch_bounds__, where that is a number
    body: str  # without comments
    launched_with: tuple[str, ...]  # template arguments of a launch in the same file


def without_comments(text: str) -> str:
    """The text with blanks in the place of its comments."""
    return _COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def kernels_of(text: str) -> tuple[Signature, ...]:
    """The file's kernels that have a body, in its order."""
    code = without_comments(text)
    signatures: dict[str, Signature] = {}
    for start in re.finditer(r"\b__global__\b", code):
        if (signature := _signature(code, start.start())) is not None:
            signatures.setdefault(signature.name, signature)
    return tuple(signatures.values())


def fields_of(text: str, structure: str) -> tuple[Parameter, ...]:
    """The fields of a structure that the file defines, in order; none where it does not."""
    code = _COMMENT.sub(" ", text)
    start = re.search(rf"\b(?:struct|class)\s+{re.escape(structure)}\b[^;{{]*\{{", code)
    if start is None:
        return ()
    body = code[start.end() : _closing(code, start.end() - 1) - 1]
    fields: list[Parameter] = []
    for statement in re.sub(r"\{[^{}]*\}", ";", body).split(";"):
        line = re.sub(r"^\s*(?:public|private|protected)\s*:", "", statement)
        if (
            not line.strip()
            or "(" in line
            or re.match(r"\s*(?:using|typedef|static|friend|template)\b", line)
        ):
            continue
        first, *others = split_list(line)
        if not (parameter := _parameter(first, code)).name:
            continue
        fields.append(parameter)
        shared = re.sub(r"[*\s]*\w+\s*(?:=.*)?$", "", first)
        fields += [_parameter(f"{shared} {other}", code) for other in others]
    return tuple(fields)


def _signature(code: str, start: int) -> Signature | None:
    position = start
    while True:
        position = code.find("(", position)
        if position < 0 or ";" in code[start:position] or "}" in code[start:position]:
            return None
        if not _ATTRIBUTE.search(code[start:position]):
            break
        position = _closing(code, position)
    named = _NAME.search(code[start:position])
    end = _closing(code, position)
    opening = re.compile(r"\s*\{").match(code, end)
    if named is None or opening is None:
        return None
    head = code[:start]
    template = _TEMPLATE.search(head[max(head.rfind(";"), head.rfind("}"), -1) + 1 :])
    bounds = _LAUNCH_BOUNDS.search(code, start, position)
    name = named["name"]
    qualified = "::".join([*_namespaces(code, start), name])
    launched = re.search(rf"\b{name}\s*<(?P<arguments>[^;<>]*)>\s*(?:<<<|[;,)])", code)
    return Signature(
        name=qualified,
        parameters=tuple(_parameter(p, code) for p in split_list(code[position + 1 : end - 1])),
        template=tuple(
            _parameter(p, code) for p in split_list(template["parameters"] if template else "")
        ),
        threads=int(bounds["threads"]) if bounds and bounds["threads"].isdigit() else None,
        body=code[opening.end() : _closing(code, opening.end() - 1)],
        launched_with=tuple(split_list(launched["arguments"])) if launched else (),
    )


def _namespaces(code: str, position: int) -> Iterator[str]:
    for match in _NAMESPACE.finditer(code, 0, position):
        if _closing(code, match.end() - 1) > position:
            yield match["name"]


def _closing(code: str, opening: int) -> int:
    """Behind the bracket that closes the one at `opening`; the end where none does."""
    pair = {"(": ")", "{": "}"}[code[opening]]
    depth = 0
    for match in re.finditer(rf"[{re.escape(code[opening] + pair)}]", code[opening:]):
        depth += 1 if match[0] == code[opening] else -1
        if depth == 0:
            return opening + match.end()
    return len(code)


def split_list(text: str) -> list[str]:
    """At commas outside brackets; nothing of an empty text."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{<") - (character in ")]}>")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [" ".join(part.split()) for part in parts] if text.strip() else []


def _parameter(written: str, code: str) -> Parameter:
    declared, equals, _ = written.partition("=")
    plain = _QUALIFIER.sub(" ", declared)
    is_pointer = "*" in plain or "[" in plain
    plain = re.sub(r"[*&]|\[[^\]]*\]", " ", plain)
    words = plain.split()
    name = words[-1] if len(words) > 1 else ""
    kind = " ".join(words[:-1]) if len(words) > 1 else plain.strip()
    aliases = {
        m["new"]: m["old"].strip() for m in (*_ALIAS.finditer(code), *_TYPEDEF.finditer(code))
    }
    for _ in range(4):
        kind = aliases.get(kind, kind)
    return Parameter(" ".join(written.split()), kind, name, is_pointer, bool(equals))
