"""Draft a description of a kernel from its declaration, to be checked by the user."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from engine.base.errors import InvalidKernel
from engine.own_kernels.block_index import BlockIndices
from engine.own_kernels.host_launch import (
    HostLaunch,
    Parameter,
    Signature,
    fields_of,
    host_launch_of,
    kernels_of,
)
from engine.own_kernels.parameters import (
    ROWS,
    SCALES,
    SIZES,
    THREADS,
    WARPS,
    Accessor,
    accessor_of,
    buffer_name,
    head_dims_of,
    is_head_dim,
    is_known_template,
    joined_words,
    pointers_of,
    size_named,
    stride_named,
    tensor_named,
    usual_number,
    with_head_dim_named,
    with_sizes_named,
    words_of,
    words_of_pointer,
)
from kernels.arguments import KNOWN
from kernels.formula import RESERVED as _RESERVED
from kernels.variant import PACKED, TENSORS, Dtype

RESERVED: Final = _RESERVED | set(KNOWN)  # names not allowed for buffers
_CTYPES: Final = {
    "int": "int32", "int32_t": "int32", "unsigned": "uint32", "unsigned int": "uint32",
    "uint32_t": "uint32", "uint": "uint32", "long": "int64", "long long": "int64",
    "long int": "int64", "long long int": "int64", "int64_t": "int64", "ptrdiff_t": "int64",
    "unsigned long": "uint64", "unsigned long long": "uint64", "uint64_t": "uint64",
    "size_t": "uint64", "std::size_t": "uint64", "bool": "bool", "float": "float32",
    "double": "float64",
}  # fmt: skip
_BUFFER_TYPES: Final = {
    "float": "float32", "double": "float64", "half": "float16", "__half": "float16",
    "__nv_bfloat16": "bfloat16", "nv_bfloat16": "bfloat16", "int": "int32", "int32_t": "int32",
    "unsigned": "uint32", "unsigned int": "uint32", "uint32_t": "uint32", "int64_t": "int64",
    "long long": "int64", "uint64_t": "uint64", "unsigned long long": "uint64",
    "int8_t": "int8", "uint8_t": "uint8", "unsigned char": "uint8",
}  # fmt: skip
_ELEMENT_NAMES: Final = frozenset(
    "t elem element elementtype scalart dtype typeio inputtype datatype half".split()
)
_FILL: Final = re.compile(r'fill = "zero"(?:, each_launch = true)?|fill = "-inf"')
_NULL: Final = "nullptr"
# `AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, q.scalar_type(), …)`
_DISPATCH: Final = re.compile(
    r"\bAT_DISPATCH_FLOATING_TYPES(?P<types>(?:_AND_?\w*)?)\s*\((?P<first>[^\"\[]{0,200})"
)
_FP8: Final = re.compile(r"__nv_fp8_e\w+|float_e[45]m[23]\w*")
_FP16: Final = frozenset(["half", "__half", "half2", "__half2", "half_t", "at::Half", "c10::Half"])
_BF16: Final = frozenset(
    ["__nv_bfloat16", "nv_bfloat16", "__nv_bfloat162", "bf16", "at::BFloat16", "c10::BFloat16"]
)


@dataclass(frozen=True, slots=True)
class Draft:
    """The fields of the form: formulas as in `kernels.formula`, C++ text, TOML lists."""

    entry: str
    grid: tuple[str, str, str] = ("1", "1", "1")
    threads: str = "128"  # or a list of three
    smem_bytes: str = "0"
    args: str = ""  # items of a TOML list, with their commas
    head_dims: tuple[int, ...] | str = (64,)  # or as text: "64, 128"
    shows_head_dims: bool = True  # the source says which they are
    dtypes: tuple[str, ...] = ("float16",)
    causal: tuple[bool, ...] = (False,)
    layout: str = "bhsd"
    keeps_macros: bool = True  # pass the usual -D macros
    scratch: str = ""  # lines of the table
    adds_to_out: bool = False  # O must be zero-initialized
    others: tuple[str, ...] = ()  # other kernels of the file
    later: tuple[Draft, ...] = ()  # of later launches, of which only the passes are used
    is_sure: bool = True  # the entry's template arguments are certain
    is_checked: bool = False  # by the user: without reminders to check lines

    def toml(self) -> str:
        """Return the description as TOML."""
        check = "" if self.is_checked else "  # check"
        dtypes = ", ".join(map(json.dumps, self.dtypes))
        dims = self.head_dims
        if not isinstance(dims, str):
            dims = ", ".join(map(str, dims))
        masks = ", ".join(str(c).lower() for c in self.causal)
        unknown = "" if self.shows_head_dims or self.is_checked else ": not shown by the source"
        lines = [
            f"head_dims = [{dims}]{check}{unknown}",
            f"dtypes = [{dtypes}]",
            f"causal = [{masks}]{check}",
            f'layout = "{self.layout}"{check}',
        ]
        if not self.keeps_macros:
            lines.append("defines = {}  # no -D macros: the source has names of its own")
        if self.adds_to_out:
            lines.append(f'out_fill = "zero"{check}')
        if self.scratch.strip():
            lines += ["", "[scratch]", self.scratch.strip()]
        for draft in (self, *self.later):
            lines += draft._pass(check)
        if self.others and not self.is_checked:
            lines.append(f"# Not in here: {', '.join(self.others)}. Each pass is a [[passes]].")
        return "\n".join(lines) + "\n"

    def _pass(self, check: str) -> list[str]:
        unsure = "" if self.is_sure else check
        return [
            "",
            "[[passes]]",
            f"entry = {_text(self.entry)}{unsure}",
            f"grid = [{', '.join(map(_formula, self.grid))}]{check}",
            f"threads = {_formula(self.threads)}{check}",
            f"smem_bytes = {_formula(self.smem_bytes)}{check}",
            "args = [",
            *(f"    {line}".rstrip() for line in self.args.strip().splitlines()),
            "]",
        ]

    def block(self) -> str:
        """Return the description as a comment for a source."""
        return f"/* attune\n{self.toml()}*/\n"


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _formula(value: str) -> str:
    """Return a formula as TOML: numbers and lists unchanged, other text in quotes."""
    plain = value.strip()
    return plain if plain.isdigit() or plain.startswith("[") else _text(plain)


_MAX_PARAMETERS = 512  # of 8 bytes: 4 KiB, the limit of a launch on every GPU


def draft_block(text: str, path: Path) -> str:
    """Return a description block to paste into a source.

    Raises:
        InvalidKernel: the source has no kernel, one of FP8 tensors, or one of too many parameters.
    """
    kernels = kernels_of(text)
    if not kernels:
        raise InvalidKernel(
            f"{path.name} has no __global__ function with a body: name the file that has it.",
            code="no_kernel_in_file",
        )
    for kernel in kernels:
        if len(kernel.parameters) > _MAX_PARAMETERS:
            raise InvalidKernel(
                f"{path.name}: {kernel.name} takes {len(kernel.parameters):,} parameters, and no "
                f"description is guessed for more than {_MAX_PARAMETERS}: write one yourself.",
                code="too_many_parameters",
            )
    return draft_of(text, in_sequence(text, kernels)[0]).block()


def draft_of(text: str, kernel: Signature) -> Draft:
    """Return the draft for one kernel of a file, including kernels to be launched after it.

    Raises:
        InvalidKernel: it is a kernel of FP8 tensors.
    """
    if found := next((m for p in kernel.parameters if (m := _FP8.search(p.written))), None):
        raise InvalidKernel(
            f"{kernel.name} takes {found[0]}, and there are no FP8 inputs yet, as a reference for "
            "them needs scales of their own: give it 16-bit or float tensors.",
            code="fp8_inputs",
        )
    sequence = in_sequence(text, kernels_of(text))
    if len(sequence) < 2 or sequence[0].name != kernel.name:
        return _Guess(text, kernel).draft()
    first, *later = (_Guess(text, one).draft() for one in sequence)
    scratch: dict[str, str] = {}
    for line in "\n".join([first.scratch, *(draft.scratch for draft in later)]).splitlines():
        name = line.partition(" ")[0]
        # A buffer that one pass writes for the next needs no initial value.
        scratch[name] = _FILL.sub('fill = "poison"', line) if name in scratch else line
    passed = {one.name for one in sequence}
    return replace(
        first,
        later=tuple(later),
        scratch="\n".join(scratch.values()),
        others=tuple(name for name in first.others if name not in passed),
        causal=max(
            (first.causal, *(d.causal for d in later)), key=lambda masks: (len(masks), masks)
        ),
        adds_to_out=False,  # several passes initialize O themselves
        layout="bs3hd" if "bs3hd" in {first.layout, *(d.layout for d in later)} else first.layout,
    )


def in_sequence(text: str, kernels: Sequence[Signature]) -> tuple[Signature, ...]:
    """Return the kernels that together compute attention, in launch order.

    A single kernel, if it takes Q, K, V and O and shares no buffer with a launched kernel that
    takes fewer of them (two that take all four are versions of one kernel). Else the kernels that
    the host code launches, if together they take all four; else the first of the file.
    """
    guesses = {kernel.name: _Guess(text, kernel) for kernel in kernels}
    taken = {name: guess.tensors() for name, guess in guesses.items()}
    buffers = {name: set(guess.scratch) for name, guess in guesses.items()}
    launches = {name: guess.launch for name, guess in guesses.items()}
    for kernel in (k for k in kernels if taken[k.name] >= set(TENSORS)):
        if not any(
            buffers[k.name] & buffers[kernel.name] and launches[k.name].position >= 0
            for k in kernels
            if not taken[k.name] >= set(TENSORS)
        ):
            return (kernel,)
    launched = [k for k in kernels if launches[k.name].position >= 0]
    launched.sort(key=lambda kernel: launches[kernel.name].position)
    if set(TENSORS) <= set[str]().union(*(taken[k.name] for k in launched)):
        return tuple(launched)
    return tuple(kernels[:1])


class _Guess:
    def __init__(self, text: str, kernel: Signature) -> None:
        self.text = text
        self.kernel = kernel
        self.scratch: dict[str, str] = {}  # lines of the table, by name
        self.parameterized: set[str] = set()
        self.is_sure = True
        self.launch = _launch_of(text, kernel)
        self.launch = _launch_of(with_sizes_named(text, kernel.parameters, self._layout()), kernel)
        self.scratch.clear()

    @functools.cached_property
    def indices(self) -> BlockIndices:
        numbers = {name: int(number) for name, number in reversed(_constants(self.text))}
        return BlockIndices(self.kernel.body, numbers)

    def tensors(self) -> set[str]:
        """Return which of Q, K, V and O the kernel takes."""
        names = {self._pointer(p).strip('"') for p in pointers_of(self.kernel.parameters)}
        return (names | set("qkv") if PACKED in names else names) & set(TENSORS)

    def draft(self) -> Draft:
        kernel = self.kernel
        entry = kernel.name + self._template_arguments()
        args = [self._line(p) for p in kernel.parameters]
        head_dims, shows_head_dims = self._head_dims()
        return Draft(
            entry=entry,
            grid=self._grid(),
            threads=self._threads(),
            smem_bytes=self._smem(),
            args="\n".join(args),
            head_dims=head_dims,
            shows_head_dims=shows_head_dims,
            dtypes=self._dtypes(),
            causal=self._masks(),
            layout=self._layout(),
            keeps_macros=self._keeps_macros(),
            scratch="\n".join(self.scratch.values()),
            adds_to_out=self._adds_to_out(),
            is_sure=self.is_sure,
            others=tuple(k.name for k in kernels_of(self.text) if k.name != kernel.name),
        )

    def _line(self, parameter: Parameter) -> str:
        argument = self._argument(parameter)
        unsure = "check: " if re.search(r"value = 0\}|ctype = \"null\"", argument) else ""
        return f"{argument},  # {unsure}{parameter.written}"

    # ---- the template ----

    def _template_arguments(self) -> str:
        values = []
        for index, parameter in enumerate(self.kernel.template):
            if parameter.has_default and not is_known_template(parameter):
                break
            given = self.kernel.launched_with[index : index + 1]
            literal = dict(_constants(self.text)).get(given[0], given[0]) if given else ""
            if not re.fullmatch(r"\d+|true|false", literal):
                literal = ""
            values.append(self._template_argument(parameter, literal))
        return f"<{', '.join(values)}>" if values else ""

    def _template_argument(self, parameter: Parameter, literal: str) -> str:
        key = joined_words(parameter.name)
        if parameter.type in ("typename", "class"):
            if key in _ELEMENT_NAMES or not key:
                self.parameterized.add("element_type")
                return "{element_type}"
            self.is_sure = False
            return "float" if re.search("acc|float", key) else parameter.name
        if key in SIZES["causal"].split():
            self.parameterized.add("causal")
            return "{causal}"
        if is_head_dim(key):
            self.parameterized.add("head_dim")
            return "{head_dim}"
        if literal:
            return literal
        self.is_sure = False
        if parameter.type == "bool":
            return "false"
        return usual_number(parameter.name) or "1"

    # ---- the arguments ----

    def _argument(self, parameter: Parameter, structure: str = "") -> str:
        if parameter.is_pointer:
            return self._pointer(parameter)
        if accessor := accessor_of(parameter):
            return self._accessor(accessor)
        return self._value(parameter, structure)

    def _accessor(self, accessor: Accessor) -> str:
        if re.search(rf"\.size\s*\(\s*{accessor.axes - 1}\s*\)", self.kernel.body):
            self.parameterized.add("head_dim")
        pointer = self._pointer(accessor.pointer)
        items = [pointer, *accessor.fields(pointer.strip('"'), self._layout())]
        inner = ",\n    ".join(items)
        return f'{{name = "{accessor.pointer.name}", fields = [\n    {inner}]}}'

    def _pointer(self, parameter: Parameter) -> str:
        words = words_of_pointer(parameter)
        given = self._given(parameter)
        if name := tensor_named(words):
            return f'"{name}"'
        name = tensor_named(given)
        if name and name not in {tensor_named(words_of_pointer(p)) for p in self.kernel.parameters}:
            return f'"{name}"'
        # FlashAttention's L is m + log(l); beside an m, it is only the sum l.
        names = {p.name.lower() for p in self.kernel.parameters}
        if words == ["l"] and "m" not in names and re.search(r"\blog2?f?\s*\(", self.kernel.body):
            return '"lse"'
        plain = parameter.type.removesuffix("2") if parameter.type == "float2" else parameter.type
        dtype = _BUFFER_TYPES.get(plain)
        if dtype is None or given == [_NULL]:
            return f'{{name = "{parameter.name}", ctype = "null"}}'
        name = "_".join(given) or re.sub(r"[^a-z0-9_]", "", parameter.name.lower()) or "buffer"
        name = f"{name}_buffer" if len(name) == 1 or name in RESERVED else name
        shape, what = '"batch", "num_heads", "seqlen"', "its shape and fill"
        shape += ", 2" if plain != parameter.type else ""
        sizes = {buffer_name(n): size for n, size in reversed(list(self.launch.allocated.items()))}
        if size := sizes.get("_".join(given) or buffer_name(parameter.name), ""):
            shape, what = _text(size), "its fill"
        self.scratch[name] = (
            f'{name} = {{dtype = "{dtype}", shape = [{shape}], {self._fill(parameter)}}}'
            f"  # check: {what}"
        )
        return f'"{name}"'

    def _host_name(self, parameter: Parameter) -> str:
        """Return the host code's name of the buffer passed for a parameter; empty if unknown."""
        names = [p.name for p in self.kernel.parameters]
        index = names.index(parameter.name) if parameter.name in names else len(names)
        return self.launch.args[index] if index < len(self.launch.args) else ""

    def _given(self, parameter: Parameter) -> list[str]:
        words = words_of(self._host_name(parameter))
        if words in ([_NULL], ["null"]):
            return [_NULL]
        return buffer_name(self._host_name(parameter)).split("_")

    def _fill(self, parameter: Parameter) -> str:
        """Return the initial value of a buffer: −∞ for a running maximum, else zero."""
        if parameter.type == "float" and words_of(parameter.name) in (
            ["m"],
            ["max"],
            ["row", "max"],
        ):
            return 'fill = "-inf"'
        # A counter is filled once, because the kernel resets it itself.
        is_sum = parameter.type in ("float", "double")
        return 'fill = "zero", each_launch = true' if is_sum else 'fill = "zero"'

    def _value(self, parameter: Parameter, structure: str) -> str:
        fields = fields_of(self.text, parameter.type)
        if fields:
            inner = ",\n    ".join(self._argument(f, parameter.name) for f in fields)
            return f'{{name = "{parameter.name}", fields = [\n    {inner}]}}'
        ctype = _CTYPES.get(parameter.type, "int32")
        # `row` in the structure `q_strides` means the same as `q_strides_row`.
        name = f"{structure}_{parameter.name}" if "stride" in structure else parameter.name
        value = self._meaning(name, is_float=ctype.startswith("float"))
        # The size that the host code passes is more certain than a guess from the parameter's name.
        if value in SIZES and (given := self._launched(parameter)) in SIZES and given != value:
            self.parameterized.add(given)
            value = given
        plain = "float32" if value in ("softmax_scale", "softmax_scale_log2") else "int32"
        if value and ctype == plain and " " not in value:
            return f'"{value}"'
        value = value or self._launched(parameter)
        formula = f'"{value}"' if value and not value.isdigit() else value or "0"
        return f'{{name = "{parameter.name}", ctype = "{ctype}", value = {formula}}}'

    def _launched(self, parameter: Parameter) -> str:
        """Return the formula of the value that the host code passes; empty if unknown."""
        index = next((i for i, p in enumerate(self.kernel.parameters) if p is parameter), -1)
        if not 0 <= index < len(self.launch.values):
            return ""
        if (stride := self.launch.strides[index]) and -4 <= stride[1] < 4:
            tensor = tensor_named(words_of(stride[0]))
            middle = ("row", "head") if self._layout() == "bshd" else ("head", "row")
            axis = ("batch", *middle, "")[stride[1]]
            return f"{tensor}_stride_{axis}" if tensor and axis else "" if axis else "1"
        return self.launch.values[index]

    def _meaning(self, name: str, *, is_float: bool) -> str:
        """Return the formula that a parameter's name stands for; empty if unknown."""
        key = joined_words(name)
        if is_float:
            if "log2" in key:
                return "softmax_scale_log2"
            return "softmax_scale" if key in SCALES.split() else ""
        if "stride" in key:
            return stride_named(words_of(name))
        for formula, known in SIZES.items():
            if key in known.split():
                self.parameterized.add(formula)
                return formula
        return ""

    # ---- the launch ----

    def _threads(self) -> str:
        launched = self.launch.threads
        if len(launched) > 1:
            return f"[{', '.join(n if n.isdigit() else _text(n) for n in launched)}]"
        known = launched[0] if launched else ""
        if known or (bound := self.indices.number(self.kernel.threads)):
            return known or str(bound)
        guessed = self.indices.threads()
        if guessed is None and "threadIdx.y" in self.kernel.body:
            guessed = (32, self._constant(WARPS) or 4)
        if guessed is not None and len(guessed) > 1:
            return f"[{', '.join(map(str, guessed))}]"
        return str(self._constant(THREADS) or (guessed[0] if guessed else 128))

    def _grid(self) -> tuple[str, str, str]:
        if self.launch.grid:
            x, y, z = self.launch.grid
            return x, y, z
        if understood := self.indices.grid(self._threads().strip("[]").split(", ")):
            return understood
        # One thread per row, if the row's index is computed from blockIdx and threadIdx.
        of_thread = re.search(
            r"blockIdx\.([xyz])\s*\*\s*blockDim\.x\s*\+\s*threadIdx\.x", self.kernel.body
        )
        rows = self._threads() if of_thread else self._constant(ROWS) or 64
        tiles = f"ceil_div(seqlen, {rows})"
        if self.indices.used == "x" and of_thread:
            return f"ceil_div(batch * num_heads * seqlen, {rows})", "1", "1"
        if self.indices.used == "x":
            return f"batch * num_heads * {tiles}", "1", "1"
        if self.indices.used == "xy":
            return tiles, "batch * num_heads", "1"
        return tiles, "num_heads", "batch"

    def _smem(self) -> str:
        if not re.search(r"extern\s+(?:\w+\(.{0,200}?\)\s*)?__shared__", self.text):
            return "0"
        return self.launch.smem_bytes or self.indices.shared() or "49152"

    def _constant(self, names: str) -> int | None:
        """Return the number that the file assigns to one of these names."""
        constants = _constants(self.text)
        return next(
            (int(number) for name, number in constants if joined_words(name) in names.split()), None
        )

    # ---- supported problems ----

    def _head_dims(self) -> tuple[tuple[int, ...], bool]:
        """Return the head dimensions, and True if the source shows them."""
        if self._knows("head_dim", "HEAD_DIM"):
            return head_dims_of(self.text, self.kernel, _constants(self.text))
        sizes = [int(n) for name, n in _constants(self.text) if is_head_dim(joined_words(name))]
        shows = bool(sizes) and 1 <= sizes[0] <= 1024
        return (sizes[0] if shows else 64,), shows

    def _dtypes(self) -> tuple[Dtype, ...]:
        tensors = [p for p in pointers_of(self.kernel.parameters) if self._is_tensor(p)]
        pointed = {p.type for p in tensors}
        if pointed and pointed <= {"float", "float2", "float4"}:
            return ("float32",)
        if "element_type" in self.parameterized and "float" in self.kernel.launched_with:
            return ("float32",)
        if "element_type" in self.parameterized or "IS_BF16" in self.text:
            return _dispatched(self.text) or ("float16", "bfloat16")
        return ("bfloat16",) if pointed & _BF16 and not pointed & _FP16 else ("float16",)

    def _adds_to_out(self) -> bool:
        """Return True if the kernel reads O before it stores to it, or adds to it."""
        pointers = pointers_of(self.kernel.parameters)
        outs = [p.name for p in pointers if self._pointer(p) == '"out"']
        for name in map(re.escape, outs):
            for statement in re.split(r"[;{}]", self.kernel.body):
                element = rf"\b{name}\s*\["
                adds = rf"{element}[^=]*\][\s)]*[-+*/]=|atomicAdd\s*\(\s*&?\s*{name}\b"
                if len(re.findall(element, statement)) > 1 or re.search(adds, statement):
                    return True
        return False

    def _masks(self) -> tuple[bool, ...]:
        if self._knows("causal", "IS_CAUSAL"):
            return (False, True)
        if re.search(r"autoregressive|causal mask", self.text):
            return (True,)
        # a switch with a name of its own
        has_choice = re.search("causal", self.kernel.body, re.IGNORECASE)
        return (not has_choice and self.indices.ends_at_own_row(),)

    def _is_tensor(self, parameter: Parameter) -> bool:
        return self._pointer(parameter).strip('"') in (*TENSORS, PACKED)

    def _layout(self) -> str:
        pointers = pointers_of(self.kernel.parameters)
        if any(self._pointer(p) == f'"{PACKED}"' for p in pointers):
            return "bs3hd"
        compact = re.sub(r"[\s_]", "", self.text.lower())
        by_row = (
            r"[\[(](?:b|batch|batchsize),(?:s|n|t|l|seqlen|seq|seqlenq),(?:h|heads|numheads|nh)"
        )
        return "bshd" if re.search(by_row, compact) or "bshd" in compact else "bhsd"

    def _knows(self, name: str, macro: str) -> bool:
        return name in self.parameterized or (
            re.search(rf"\b{macro}\b", self.text) is not None and self._keeps_macros()
        )

    def _keeps_macros(self) -> bool:
        """Return True if the usual -D macros do no harm: the file declares none of their names."""
        own = r"(?:#[ \t]*define[ \t]+|\b(?:int|bool|auto|size_t|unsigned)\s+)"
        return not re.search(rf"{own}(?:HEAD_DIM|IS_CAUSAL|IS_BF16)\b", self.text)


def _dispatched(text: str) -> tuple[Dtype, ...]:
    """Return the formats for which PyTorch's dispatch macro instantiates the kernel; empty without
    one."""
    macro = _DISPATCH.search(text)
    if macro is None:
        return ()
    named = macro["types"], macro["first"]
    is_half = "HALF" in named[0] or "Half" in named[1]
    is_bf16 = "BFLOAT16" in named[0] or "BFloat16" in named[1]
    return (*(["float16"] if is_half else ()), *(["bfloat16"] if is_bf16 else ()), "float32")


def _constants(text: str) -> list[tuple[str, str]]:
    one = r"(\w+)\s*=?\s*\(?(\d+)\b"
    parts = re.findall(rf"(?:#[ \t]*define[ \t]+|constexpr\s+\w+\s+|const\s+int\s+){one}", text)
    for more in re.findall(r"\bconstexpr\s+\w+\s+\w+\s*=[^;,]*,([^;]*);", text):
        parts += re.findall(one, more)
    return parts


def _launch_of(text: str, kernel: Signature) -> HostLaunch:
    text = with_head_dim_named(text, kernel, _constants(text))
    return host_launch_of(text, kernel.name.rpartition("::")[2], size_named, usual_number)
