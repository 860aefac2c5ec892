"""Guess the meaning of a kernel's parameters: tensors, sizes, strides, tiles, head dimensions.

Names are compared with usual ones. PyTorch's `packed_accessor32` passes a tensor by value, as a
structure: the address, then a size and then a stride for each axis. The head dimensions are those
for which the file's host code launches the kernel. It is parsed, not executed. Found are launches
with D as a number, as in `attend<64><<<…>>>`; without any, the cases of a `switch` over D and
comparisons with D.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from engine.cuda_source.host_code import closing, without_comments
from engine.own_kernels.host_launch import (
    Parameter,
    Signature,
    kernels_of,
    split_list,
)
from kernels.variant import PACKED, TENSORS

_POINTERS: Final = {
    "q": "q query queries", "k": "k key keys", "v": "v value values",
    "qkv": "qkv inp qkvpacked packedqkv mixedqkv", "out": "o out output outputs result y dst",
    "lse": "lse softmaxlse logsumexp",
}  # fmt: skip
SIZES: Final = {
    "batch": "b batch batchsize bs bsz nbatch numbatch numbatches",
    "num_heads_kv": "hkv hk numheadskv nkvheads kvheads numkvheads headskv nheadsk numheadsk "
    "numkeyvalueheads nheadskv",
    "num_heads": "h nh heads numheads nheads nhead numhead hq numqheads numheadsq qheads nqheads",
    "seqlen_kv": "skv seqlenkv seqlenk kvlen lenkv lenk nk sk nkv kvseqlen tkv seqkv kseqlen "
    "numkeys lk lkv",
    "seqlen": "s n t seqlen seqlenq sq nq lenq qlen seq sequencelength qseqlen seqlength numtokens "
    "lq",
    "head_dim": "d dim headdim hd hs dk dhead headsize dh",
    "causal": "causal iscausal",
    "num_heads * head_dim": "c channels dmodel embeddim hidden hiddensize embed modeldim",
    "num_heads // num_heads_kv": "hhkratio group groupsize headgroup kvgroup queriesperkv gqagroup "
    "headspergroup",
}  # fmt: skip
SCALES: Final = (
    "scale softmaxscale smscale scaling scalefactor attnscale qkscale sm attentionscale "
    "invsqrtd scalesoftmax"
)
_DROPPED: Final = frozenset(
    "ptr p d dev device g gmem global in tensor matrix param params".split()
)
ROWS: Final = "blockm br bm blockq tileq tilem blocksizem qtile blocksizeq rows blockrows"
_KEYS: Final = "blockn bc bn blockk tilek tilen tilekv blocksizen blockkv bkv ktile kvtile"
THREADS: Final = "threads numthreads nthreads tbsize blockthreads threadsperblock blocksize"
WARPS: Final = "warps numwarps nwarps warpsperblock warpspercta"
_OF_HOST: Final = frozenset("d dev device h ptr gpu".split())


def size_named(name: str) -> str:
    """Return the formula of the problem's size with this name; empty if there is none."""
    key = joined_words(name)
    if is_head_dim(key):
        return "head_dim"
    sizes = (formula for formula, known in SIZES.items() if key in known.split())
    return next((formula for formula in sizes if formula != "causal"), "")


def usual_number(name: str) -> str:
    """Return the usual number for the name of a tile, a CTA's threads or its warps; empty for other
    names."""
    key = joined_words(name)
    known = ((ROWS, 64), (_KEYS, 64), (THREADS, 128), (WARPS, 4))
    return next((str(value) for names, value in known if key in names.split()), "")


def is_known_template(parameter: Parameter) -> bool:
    """Return True if a template parameter is the head dimension or the causal switch."""
    key = joined_words(parameter.name)
    return is_head_dim(key) or key in SIZES["causal"].split()


def is_head_dim(key: str) -> bool:
    """Return True if joined words (`joined_words`) name the head dimension."""
    return key in (*SIZES["head_dim"].split(), "kheaddim", "khd", "kd", "kdim", "headdimension")


def words_of(name: str) -> list[str]:
    """Split a name into words: `numHeads_kv` into num, heads, kv."""
    parts = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower().split("_")
    return [part for part in parts if part]


def joined_words(name: str) -> str:
    """Return the words of a name joined; the leading k of constants (`kBlockM`) is dropped."""
    words = words_of(name)
    return "".join(words[1:] if len(words) > 1 and words[0] == "k" else words)


def buffer_name(name: str) -> str:
    """Return a buffer's name without prefixes that mark device memory: `preatt` for `d_preatt`."""
    words = words_of(name)
    return "_".join([word for word in words if word not in _OF_HOST] or words)


def words_of_pointer(parameter: Parameter) -> list[str]:
    """Return the words of a pointer's name, without those that only mark a pointer."""
    words = words_of(parameter.name)
    return [word for word in words if word not in _DROPPED] or words


def tensor_named(words: list[str]) -> str:
    """Return the tensor with this name; empty if there is none."""
    return next((n for n, known in _POINTERS.items() if "".join(words) in known.split()), "")


def has_word(words: list[str], stem: str) -> bool:
    """Return True if a word contains the stem."""
    return any(stem in word for word in words)


def stride_named(words: list[str]) -> str:
    """The formula of a stride named as in FlashAttention, PyTorch or Triton; empty if unclear.

    Without a tensor's name (`stride_h`), all tensors share the stride; Q's is returned.
    """
    rest = [word for word in words if word not in ("stride", "strides")]
    if len(rest) == 1 and len(rest[0]) == 2:
        rest = list(rest[0])
    if not rest:
        return ""
    if len(rest) == 1 and rest[0] in ("batch", "b", "bs", "head", "h", "heads", "row", "seq", "s"):
        rest = ["q", *rest]
    tensor = {"q": "q", "k": "k", "v": "v", "o": "out", "out": "out"}.get(rest[0], "")
    axis = rest[1] if len(rest) > 1 else ""
    if not tensor or not axis:
        return ""
    if axis in ("batch", "b", "z", "bs"):
        return f"{tensor}_stride_batch"
    if axis in ("head", "h", "heads", "nh"):
        return f"{tensor}_stride_head"
    by_row = ("row", "seq", "seqlen", "s", "m", "t", "token") + (("n",) if tensor in "qk" else ())
    return f"{tensor}_stride_row" if axis in by_row or (tensor == "v" and axis == "k") else "1"


_ACCESSOR = re.compile(
    r"(?:(?:torch|at)::)?(?:Generic)?PackedTensorAccessor(?P<bits>32|64)?\s*"
    r"<\s*(?P<element>[\w:]+)\s*,\s*(?P<axes>[1-9])\s*(?:,(?P<more>.*))?>",
    re.DOTALL,
)
# `key.size(2)`, `key.sizes()[2]`
_SIZE = re.compile(
    r"\b(?P<name>[A-Za-z]\w*)\s*\.\s*sizes?\s*\((?:\s*\)\s*\[)?\s*(?P<axis>-?\d)\s*[\])]"
)


@dataclass(frozen=True, slots=True)
class Accessor:
    """A parameter of an accessor type: `pointer` is its first member, written as a parameter;
    `axes` the number of dimensions; `index` the type of sizes and strides."""

    pointer: Parameter
    axes: int
    index: str

    def fields(self, tensor: str, layout: str) -> list[str]:
        """Return the sizes and strides, as items of a description's list of fields after the
        pointer.

        Args:
            tensor: the name of the buffer in the description.
            layout: the order of the axes, `bhsd` or `bshd`.
        """
        sizes, strides = _axes(tensor, self.axes, layout)
        name = self.pointer.name
        return [
            f'{{name = "{name}_{what}_{axis}", ctype = "{self.index}", value = {_value(formula)}}}'
            for what, formulas in (("size", sizes), ("stride", strides))
            for axis, formula in enumerate(formulas)
        ]


def accessor_of(parameter: Parameter) -> Accessor | None:
    """Return the accessor that a parameter is; None for other types."""
    match = _ACCESSOR.fullmatch(parameter.type)
    if match is None or parameter.is_pointer:
        return None
    is_small = match["bits"] == "32" or re.search(r",\s*(?:int32_t|int)\s*$", match["more"] or "")
    pointer = replace(parameter, type=match["element"], is_pointer=True)
    return Accessor(pointer, int(match["axes"]), "int32" if is_small else "int64")


def _axes(tensor: str, num_axes: int, layout: str) -> tuple[list[str], list[str]]:
    """Return sizes and strides of a tensor's axes as formulas. An accessor with fewer axes than the
    tensor has its outer axes merged."""
    kv = "_kv" if tensor in ("k", "v") else ""
    heads, rows = f"num_heads{kv}", f"seqlen{kv}"
    middle = [(rows, "row"), (heads, "head")] if layout == "bshd" else [
        (heads, "head"), (rows, "row")
    ]  # fmt: skip
    if tensor == PACKED:
        sizes = ["batch", "seqlen", "3", "num_heads", "head_dim"]
    elif tensor in ("q", "k", "v", "out"):
        sizes = ["batch", *(size for size, _ in middle), "head_dim"]
    else:
        sizes = ["batch", "num_heads", "seqlen", *["1"] * (num_axes - 3)]
    joined = max(len(sizes) - num_axes + 1, 1)
    sizes = [" * ".join(sizes[:joined]), *sizes[joined:], *["1"] * (num_axes - len(sizes))]
    strides = [" * ".join(sizes[axis + 1 :]) or "1" for axis in range(len(sizes))]
    if tensor in ("q", "k", "v", "out"):
        names = ["batch", *(name for _, name in middle)][joined - 1 :]
        strides[: len(names)] = [f"{tensor}_stride_{name}" for name in names]
    return sizes, strides


def _value(formula: str) -> str:
    return formula if formula.isdigit() else f'"{formula}"'


def pointers_of(parameters: Sequence[Parameter]) -> list[Parameter]:
    """Return the pointers among a kernel's parameters, including those of accessors."""
    accessors = map(accessor_of, parameters)
    return [
        accessor.pointer if accessor else parameter
        for parameter, accessor in zip(parameters, accessors, strict=True)
        if accessor or parameter.is_pointer
    ]


def with_sizes_named(text: str, parameters: Sequence[Parameter], layout: str) -> str:
    """Return the text with sizes of tensors replaced by formulas: `seqlen_kv` for `key.size(2)`.

    A tensor has as many axes as its accessor, else four. If only its first three sizes are used, it
    may have three axes and is left unchanged.

    Args:
        layout: the order of the axes, `bhsd` or `bshd`.
    """
    declared = {
        tensor_named(buffer_name(accessor.pointer.name).split("_")): accessor.axes
        for accessor in map(accessor_of, parameters)
        if accessor is not None
    }
    asked: dict[str, set[int]] = {}
    for match in _SIZE.finditer(text):
        asked.setdefault(match["name"], set()).add(int(match["axis"]))

    def named(match: re.Match[str]) -> str:
        tensor, axis = tensor_named(buffer_name(match["name"]).split("_")), int(match["axis"])
        axes = declared.get(tensor, 5 if tensor == PACKED else 4)
        may_have_three = tensor not in declared and asked[match["name"]] == {0, 1, 2}
        if tensor not in (*TENSORS, PACKED) or may_have_three or not -axes <= axis < axes:
            return match[0]
        formula = _axes(tensor, axes, layout)[0][axis]
        return formula if " " not in formula else f"({formula})"

    return _SIZE.sub(named, text)


_MAX_HEAD_DIM = 1024  # largest D, as in descriptions
_USUAL = (32, 64, 128)  # offered where the source does not show which
_TEMPLATE = re.compile(r"\btemplate\s*<([^<>]{1,300})>\s*(?:[\w:*&]+\s+){1,6}?(\w+)\s*\(")
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


def head_dims_of(
    text: str, kernel: Signature, constants: Sequence[tuple[str, str]]
) -> tuple[tuple[int, ...], bool]:
    """Return the head dimensions of a kernel that takes D, ascending, and True if the source shows
    them: the host code, template arguments, assertions, a constant or the length of arrays."""
    code = without_comments(text)
    for chosen in (
        _chosen_head_dims(text, kernel, constants),
        _template_head_dims(code, constants),
        _asserted(code, "==", constants),
        _constant_head_dims(kernel, constants),
    ):
        if dims := tuple(sorted({dim for dim in chosen if 1 <= dim <= _MAX_HEAD_DIM})):
            return dims, True
    if any(number.isdigit() for number in kernel.launched_with):
        return (_USUAL[1],), False
    most = min([_most_head_dim(kernel, constants), *_asserted(code, "<=", constants)])
    factors = _asserted(code, "%", constants)
    fits = tuple(d for d in _USUAL if d <= most and not any(d % n for n in factors))
    return fits or (most,), most < _MAX_HEAD_DIM or bool(factors)


def _constant_head_dims(kernel: Signature, constants: Sequence[tuple[str, str]]) -> list[int]:
    """Return the constants of the file that are called D and used by the kernel."""
    used = set(re.findall(r"\w+", kernel.body))
    return [int(number) for name, number in constants if name in used and _is_dim(name)]


def _template_head_dims(code: str, constants: Sequence[tuple[str, str]]) -> Iterator[int]:
    """Yield D of explicit instantiations and calls of the file's templates: 64 of `run<64>(…)`."""
    known = dict(reversed(constants))
    for template in _TEMPLATE.finditer(code):
        names = [re.findall(r"\w+", one.partition("=")[0]) for one in split_list(template[1])]
        for index, words in enumerate(names):
            if words and _is_dim(words[-1]):
                for use in re.findall(rf"\b{template[2]}\s*<([^<>;{{}}]{{1,200}})>", code):
                    given = split_list(use)[index : index + 1]
                    yield from (int(n) for g in given if (n := known.get(g, g)).isdigit())


def _asserted(code: str, sign: str, constants: Sequence[tuple[str, str]]) -> list[int]:
    """Return the numbers that static assertions compare D with: 64 of `D == 64`, `D <= 64` or
    `D % 64 == 0`."""
    known, numbers = dict(reversed(constants)), []
    for match in re.finditer(r"\bstatic_assert\s*(?=\()", code):
        asserted = code[match.end() : closing(code, match.end())]
        for name, given in re.findall(rf"\b(\w+)\s*{sign}\s*(\w+)\b", asserted):
            if _is_dim(name) and (number := known.get(given, given)).isdigit() and int(number):
                numbers.append(int(number))
    return numbers


def _is_dim(name: str) -> bool:
    return is_head_dim(joined_words(name))


def _chosen_head_dims(
    text: str, kernel: Signature, constants: Sequence[tuple[str, str]]
) -> tuple[int, ...]:
    """Return the head dimensions; empty if the host code does not determine them.

    Launches that differ from the first one in more than D are ignored, because a description has
    one launch for all.
    """
    if launches := _launches(text, kernel, constants):
        same = [one for one in launches if launches[0].differs_at(one) is not None]
        return tuple(dim for one in same for dim in one.dims)
    host = without_comments(text)
    for one in kernels_of(text):
        host = host.replace(one.body, "")
    return tuple(_compared(host))


def _most_head_dim(kernel: Signature, constants: Sequence[tuple[str, str]]) -> int:
    """Return the largest D for which a thread's local arrays are long enough: 64 for `float
    acc[64]` if a loop over D indexes it. 1024 if no array limits it."""
    lengths = {}
    for match in _ARRAY.finditer(kernel.body):
        numbers = [number for name, number in constants if name == match["length"]]
        number = match["length"] if match["length"].isdigit() else "".join(numbers[:1])
        if number and "__shared__" not in match["before"]:
            lengths[match["name"]] = int(number)
    most = _MAX_HEAD_DIM
    for loop in _LOOP.finditer(kernel.body):
        if is_head_dim(joined_words(loop["end"])):
            indexed = re.compile(rf"\b(\w+)\s*\[\s*{loop['index']}\s*\]")
            most = min(
                [most, *(lengths.get(n, _MAX_HEAD_DIM) for n in indexed.findall(kernel.body))]
            )
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
        dims = tuple(dim for dim in dict.fromkeys(map(int, numbers)) if 1 <= dim <= _MAX_HEAD_DIM)
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
