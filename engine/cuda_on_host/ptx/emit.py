"""Translate one asm statement to one line of C++ that executes its instructions on its operands.

Operands are read into variables, PTX registers are variables, each instruction is a block, and the
outputs are written at the end. `{ }` of the PTX is a scope, `@p` an if, a label a local label (GNU
extension). An instruction that is not in the table is an error with its text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from engine.base.errors import CompileError
from engine.cuda_on_host.ptx.grammar import (
    FORMS,
    TYPES,
    AsmStatement,
    CloseScope,
    Declaration,
    Form,
    Instruction,
    Label,
    Match,
    OpenScope,
    OperandForm,
    PtxSyntaxError,
    Step,
    parse_ptx,
)
from engine.cuda_source.host_code import split_commas

# Special registers of PTX as expressions of the runtime.

_SELF = "coh::self->"
_LANE = f"{_SELF}lane"

SPECIAL_REGISTERS = {
    "laneid": _LANE,
    "warpid": f"{_SELF}warp",
    "nwarpid": "32",
    # The CPU counts as one SM.
    "smid": "0",
    "nsmid": "1",
    "gridid": "0",
    "clock": "coh::ptx::clock_ticks()",
    "clock_hi": "coh::ptx::clock_ticks() >> 32",
    "clock64": "coh::ptx::clock_ticks()",
    "globaltimer": "coh::ptx::clock_ticks()",
    "globaltimer_lo": "coh::ptx::clock_ticks()",
    "globaltimer_hi": "coh::ptx::clock_ticks() >> 32",
    "lanemask_eq": f"1u << {_LANE}",
    "lanemask_lt": f"(1u << {_LANE}) - 1",
    "lanemask_le": f"(uint32_t)((2ull << {_LANE}) - 1)",
    "lanemask_gt": f"~(uint32_t)((2ull << {_LANE}) - 1)",
    "lanemask_ge": f"~((1u << {_LANE}) - 1)",
    "dynamic_smem_size": f"{_SELF}dynamic_smem_bytes",
    **{
        f"{ptx}.{axis}": f"{_SELF}{name}.{axis}"
        for ptx, name in (
            ("tid", "thread_idx"),
            ("ctaid", "block_idx"),
            ("ntid", "block_dim"),
            ("nctaid", "grid_dim"),
            ("cluster_nctaid", "cluster_dim"),
        )
        for axis in "xyz"
    },
    **{
        f"{ptx}.{axis}": f"{_SELF}{name}.{axis} {operation} {_SELF}cluster_dim.{axis}"
        for ptx, name, operation in (
            ("clusterid", "block_idx", "/"),
            ("nclusterid", "grid_dim", "/"),
            ("cluster_ctaid", "block_idx", "%"),
        )
        for axis in "xyz"
    },
    "cluster_ctarank": f"{_SELF}cluster_rank",
    "cluster_nctarank": f"{_SELF}cluster_size",
    "is_explicit_cluster": f"{_SELF}cluster_size > 1",
}


# Reading and writing operands of PTX instructions in C++.
#
# Valid operands depend on the instruction, so each method takes the form's operand or type.


CPU_ALTERNATIVE = (
    "write it with instructions of the table in engine/cuda_on_host/ptx/table, or give the "
    "CPU a version of its own under #if defined(__CUDA_ON_HOST__)"
)
_INTEGER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?")
_FLOAT_BITS = re.compile(r"0[fF]([0-9a-fA-F]{8})|0[dD]([0-9a-fA-F]{16})")
_DECIMAL = re.compile(r"[+-]?\d+\.\d*(?:[eE][+-]?\d+)?")
# An element of an array, without calls and side effects.
_ELEMENT = re.compile(r"\s*(?P<array>[A-Za-z_]\w*)\s*\[(?:(?!\+\+|--|=)[^()])*\]\s*")
_ADDRESS = re.compile(r"\[\s*([^\s+\-\]]+)\s*(?:([+-])\s*([^\]]+?))?\s*\]")


@dataclass(frozen=True, slots=True)
class Register:
    variable: str
    type: str  # a PTX type, or "imm"
    place: str = ""  # for an output: the C++ expression's variable


class Operands:
    """The registers that are visible to an instruction of a statement."""

    def __init__(self, statement: AsmStatement) -> None:
        self._statement = statement
        self._registers: dict[str, Register] = {}
        self._in_place: set[str] = set()  # operands that are not copied
        self._placed: dict[int, str] = {}  # number of an input: code for its address
        self._current = statement.template  # the text that errors show
        self._opcode = ""

    def _error(self, problem: str, remedy: str = "") -> CompileError:
        text = " ".join(self._current.split()).rstrip(";").strip()
        message = f"{self._statement.where}: {problem}: `{text}`"
        return CompileError(f"{message}; {remedy}." if remedy else f"{message}.", log=text)

    def _operand(self, match: Match, form: OperandForm, text: str) -> tuple[list[str], list[str]]:
        """Return the code before the instruction, which declares the operand, and after it."""
        kind = match.kind_of(form)
        name = form.name
        if form.direction == "~":
            return [self._accumulators(name, text)], []
        if form.direction == "=":
            return self._output(match, form, text)
        if kind == "imm":
            return [f"constexpr long long {name} = {self._constant(text)};"], []
        if kind == "tensor":
            return self._tile(match, form, text), []
        if kind in ("shared", "cluster", "global"):
            return [f"char *const {name} = {self._address(text, kind)};"], []
        cpp = TYPES[kind][0]
        if (count := match.count(form)) is None:
            return [f"const {cpp} {name} = {self._get(text, kind)};"], []
        values = ", ".join(self._get(part, kind) for part in elements(text))
        code = [f"const {cpp} {name}[{count}] = {{{values}}};"]
        if form.direction == "&":
            places = ", ".join(map(self._place_of_input, elements(text)))
            code.append(f"const void *const {name}_place = coh::ptx::neighbours({{{places}}});")
        return code, []

    def _output(self, match: Match, form: OperandForm, text: str) -> tuple[list[str], list[str]]:
        kind = match.kind_of(form)
        cpp = TYPES[kind][0]
        if (count := match.count(form)) is not None:
            parts = elements(text)
            puts = [self._put(part, kind, f"{form.name}[{i}]") for i, part in enumerate(parts)]
            return [f"{cpp} {form.name}[{count}];"], puts
        before = [f"{cpp} {form.name};"]
        first, _, second = text.partition("|")
        after = [self._put(first.strip(), kind, form.name)]
        if form.second is not None:
            before.append(f"{TYPES[form.second.kind][0]} {form.second.name};")
            if second:
                after.append(self._put(second.strip(), form.second.kind, form.second.name))
        return before, after

    def _accumulators(self, name: str, text: str) -> str:
        places = []
        for part in elements(text):
            register = self._registers.get(part)
            if register is None or not register.place or register.type != "f32":
                raise self._error(f'{part} is added to later: it must be an operand "+f"')
            self._in_place.add(part)
            places.append(register.place)
        arguments = ", ".join(["coh_here", *places])
        return f"float *const {name} = coh::ptx::in_place<{len(places)}>({arguments});"

    def _place_of_input(self, text: str) -> str:
        """Return the address of an operand's array if it is a variable or outlives the function.

        A value that is passed or computed may no longer exist when it is read."""
        number, outputs = int(text[1:]) if text[1:].isdigit() else -1, len(self._statement.outputs)
        given = self._statement.inputs[number - outputs] if number >= outputs else None
        element = _ELEMENT.fullmatch(given.expression) if given else None
        if element is None:
            return "nullptr"
        place = f"coh::ptx::place_of<decltype({element['array']})>({element[0].strip()})"
        self._placed[number] = f"const void *const coh_at{number} = {place};"
        return f"coh_at{number}"

    def _tile(self, match: Match, form: OperandForm, text: str) -> list[str]:
        parts = split_commas(text.strip()[1:-1])
        coordinates = elements(parts[1]) if len(parts) == 2 else []
        count = match.count(form)
        if len(coordinates) != count:
            raise self._error(f"the tile's address is written [map, {{{count} coordinates}}]")
        values = ", ".join(self._get(c, "s32") for c in coordinates)
        return [
            f"const void *const {form.name} = (const void *){self._get(parts[0], 'u64')};",
            f"const int {form.name}_at[{count}] = {{{values}}};",
        ]

    def _address(self, text: str, space: str) -> str:
        match = _ADDRESS.fullmatch(text)
        if match is None:
            raise self._error(f"the address {text} is not understood")
        register = self._register(match[1])
        bits = TYPES[register.type][1] if register.type != "imm" else 64
        is_global = space == "global"
        if bits < (64 if is_global else 32) or register.type.startswith("f"):
            raise self._error(
                f"{match[1]} has {bits} bits, and a {space} address has "
                f"{'64' if is_global else '32 or 64'}"
            )
        offset = f" {match[2]} {self._get(match[3], 's64')}" if match[2] else ""
        function = "generic" if is_global else space
        return f"coh::ptx::{function}((uint64_t)({register.variable}{offset}), coh_here)"

    def _register(self, name: str) -> Register:
        if name not in self._registers:
            raise self._error(f"register {name} is not declared")
        if name in self._in_place:
            raise self._error(f"{name} holds a wgmma's accumulator, which is complete only later")
        return self._registers[name]

    def _constant(self, text: str) -> str:
        if _INTEGER.fullmatch(text):
            return _integer(text)
        register = self._register(text)
        if register.type != "imm":
            raise self._error(f'{text} must be a constant: a number, or an operand "n"')
        return register.variable

    def _get(self, text: str, kind: str) -> str:
        """Return code that reads an operand as a PTX type."""
        cpp, bits = TYPES[kind]
        is_small_float = cpp.startswith("coh::")
        if _INTEGER.fullmatch(text):
            if is_small_float:
                return f"coh_bit_cast<{cpp}>((uint{bits}_t){_integer(text)})"
            return f"({cpp}){_integer(text)}"
        if match := _FLOAT_BITS.fullmatch(text):
            number = f"0x{match[1]}u" if match[1] else f"0x{match[2]}ull"
            if kind[0] == "b":
                return f"({cpp}){number}"
            return f"({cpp})coh_bit_cast<{'float' if match[1] else 'double'}>({number})"
        if _DECIMAL.fullmatch(text):
            return f"({cpp})({text})"
        if text == "WARP_SZ":
            return f"({cpp})32"
        if text.startswith("!"):
            if kind != "pred":
                raise self._error(f"{text} is not a predicate")
            return f"!{self._get(text[1:].strip(), kind)}"
        if text.startswith("%") and not text[1:].isdigit() and text not in self._registers:
            return f"({cpp})({self._special(text)})"
        register = self._register(text)
        if register.type == "imm":
            return f"({cpp}){register.variable}"
        self._require_type(text, register, kind)
        return f"coh::ptx::get<{cpp}>({register.variable})"

    def _special(self, text: str) -> str:
        code = SPECIAL_REGISTERS.get(text.removeprefix("%"))
        if code is None:
            raise self._error(f"the CPU backend has no register {text}", CPU_ALTERNATIVE)
        return code

    def _put(self, text: str, kind: str, value: str) -> str:
        if text == "_":
            return ""
        register = self._register(text)
        if register.type == "imm" or (re.fullmatch(r"%\d+", text) and not register.place):
            raise self._error(f"{text} is written, and it is an input")
        self._require_type(text, register, kind)
        return f"coh::ptx::put({register.variable}, {value});"

    def _require_type(self, text: str, register: Register, kind: str) -> None:
        """Check a register's type as ptxas does. ld, st and cvt take wider registers."""
        has, needs = TYPES[register.type][1], TYPES[kind][1]
        relaxed = self._opcode in ("ld", "ldu", "st", "cvt")
        if has != needs and not (relaxed and has > needs):
            raise self._error(
                f"{text} is a register of {has} bits and the instruction takes {needs} (.{kind})"
            )
        if register.type in ("f32", "f64") and kind[0] in "us" and not relaxed:
            raise self._error(
                f"{text} is a floating-point register and the instruction's type is .{kind}"
            )


def _integer(text: str) -> str:
    digits = text.rstrip("U")
    sign, number = ("-", digits[1:]) if digits[0] == "-" else ("", digits.lstrip("+"))
    return f"({sign}{number}{'ull' if len(number) > 15 else 'll'})"


def elements(text: str) -> list[str]:
    """Return the elements of a vector; a register is a vector of one element."""
    return split_commas(text[1:-1]) if text.startswith("{") else [text]


# Register type of a constraint, as nvcc declares it.
_CONSTRAINTS = {"h": "b16", "r": "b32", "l": "b64", "q": "b128", "f": "f32", "d": "f64"}


def emit_statement(statement: AsmStatement, site: str) -> str:
    """Return the C++ of a statement; `site` is the expression for the line that errors name.

    Raises:
        CompileError: names the line, the PTX that cannot be executed and what to do.
    """
    return _Emitter(statement, site).code()


class _Emitter(Operands):
    def __init__(self, statement: AsmStatement, site: str) -> None:
        super().__init__(statement)
        self._site = site
        self._outer_registers: list[dict[str, Register]] = []
        self._declared = 0
        self._has_carry = False

    def code(self) -> str:
        try:
            steps = parse_ptx(self._statement.template)
        except PtxSyntaxError as error:
            self._current = error.text
            raise self._error(f"{error}") from None
        self._name_operands()
        body = [self._step(step) for step in steps]
        labels = [step.name for step in _top_level_labels(steps)]
        return " ".join(
            [
                "do {",
                _label_declaration(labels),
                f"const coh::Site coh_here = {self._site}; (void)coh_here;",
                "bool coh_carry = false; (void)coh_carry;" if self._has_carry else "",
                *self._operands_in(),
                *body,
                *self._operands_out(),
                "} while (0)",
            ]
        )

    # ---- the operands of the statement ----

    def _name_operands(self) -> None:
        operands = self._statement.outputs + self._statement.inputs
        for number, operand in enumerate(operands):
            kind = operand.constraint.lstrip("=+&")
            is_output = number < len(self._statement.outputs)
            tied = kind.isdigit() and int(kind) < len(self._statement.outputs)
            if tied:
                kind = operands[int(kind)].constraint.lstrip("=+&")
            if kind not in (*_CONSTRAINTS, "n") or (kind == "n" and is_output):
                raise self._error(
                    f'constraint "{operand.constraint}" of operand %{number} is not one of '
                    "h, r, l, f, d, q and n"
                )
            register_type = "imm" if kind == "n" else _CONSTRAINTS[kind]
            place = f"coh_place{number}" if is_output else ""
            self._registers[f"%{number}"] = Register(f"coh_{number}", register_type, place)

    def _operands_in(self) -> list[str]:
        code = []
        outputs = len(self._statement.outputs)
        for number, operand in enumerate(self._statement.outputs + self._statement.inputs):
            register = self._registers[f"%{number}"]
            if register.type == "imm":
                code.append(f"constexpr long long {register.variable} = ({operand.expression});")
                continue
            kind = next(k for k, v in _CONSTRAINTS.items() if v == register.type)
            # An output is a reference; an input a copy, where an array becomes a pointer.
            binding = "auto &&" if number < outputs else "const auto "
            place = register.place or f"coh_place{number}"
            code.append(f"{binding}{place} = ({operand.expression});")
            # Here instead of in the header, so that the message has the statement's line.
            message = (
                f'operand %{number} does not have the size and kind of constraint \\"{kind}\\"'
            )
            code.append(
                f"static_assert(coh::ptx::fits<'{kind}', decltype({place})>(), \"{message}\");"
            )
            if f"%{number}" in self._in_place:
                continue
            if number in self._placed:
                code.append(self._placed[number])
            value = f" = coh::ptx::read_operand<'{kind}'>({place})"
            is_read = number >= outputs or operand.constraint.startswith("+")
            code.append(f"{_storage(register.type)} {register.variable}{value if is_read else ''};")
        for number, operand in enumerate(self._statement.inputs, outputs):
            if (tied := operand.constraint).isdigit():
                code.append(f"coh_{tied} = coh_{number};")
        return code

    def _operands_out(self) -> list[str]:
        return [
            f"coh::ptx::write_operand(coh_place{number}, coh_{number});"
            for number in range(len(self._statement.outputs))
            if f"%{number}" not in self._in_place
        ]

    # ---- steps ----

    def _step(self, step: Step) -> str:
        match step:
            case OpenScope(labels):
                self._outer_registers.append(dict(self._registers))
                return f"{{ {_label_declaration(labels)}"
            case CloseScope():
                self._registers = self._outer_registers.pop()
                return "}"
            case Label(name):
                return f"{_label(name)}: ;"
            case Declaration():
                return self._declare(step)
            case Instruction():
                return self._instruction(step)

    def _declare(self, declaration: Declaration) -> str:
        self._current = declaration.text
        if declaration.type not in TYPES:
            raise self._error("the CPU backend has no registers of this type", CPU_ALTERNATIVE)
        code = []
        for name in declaration.names:
            self._declared += 1
            variable = f"coh_{re.sub(r'[^A-Za-z0-9]', '_', name)}_{self._declared}"
            self._registers[name] = Register(variable, declaration.type)
            code.append(f"{_storage(declaration.type)} {variable};")
        return " ".join(code)

    def _instruction(self, instruction: Instruction) -> str:
        self._current = instruction.text
        self._opcode = instruction.opcode
        if instruction.opcode == "bra":
            if len(instruction.operands) != 1:
                raise self._error("a branch has one target")
            code = f"goto {_label(instruction.operands[0])};"
        else:
            code = self._execute(instruction)
        if instruction.guard:
            sign = "!" if instruction.guard.startswith("!") else ""
            name = instruction.guard.lstrip("!")
            code = f"if ({sign}{self._register(name).variable}) {{ {code} }}"
        return code

    def _execute(self, instruction: Instruction) -> str:
        match, operands = self._find_form(instruction)
        before, after = [], []
        for form, text in operands:
            begin, end = self._operand(match, form, text)
            before += begin
            after += end
        code = match.code()
        if "coh_carry" in code:
            reads = re.match(r"(?:addc|subc|madc)\b", instruction.opcode)
            if reads and not self._has_carry:
                raise self._error(
                    "this instruction needs the carry of an instruction before it in the same asm "
                    "statement",
                    "put the whole chain into one asm statement",
                )
            self._has_carry = True
        if not code.endswith(";"):
            code = f"{match.form.operands[0].name} = {code};"
        return " ".join(["{", *before, code, *after, "}"])

    def _find_form(self, instruction: Instruction) -> tuple[Match, list[tuple[OperandForm, str]]]:
        known = FORMS.get(instruction.opcode, [])
        if not known:
            raise self._error("the CPU backend does not execute this PTX", CPU_ALTERNATIVE)
        matches = [m for form in known if (m := form.match(instruction.name)) is not None]
        if not matches:
            ordered = [(form, form.in_order(instruction.name)) for form in known]
            matches = [m for form, name in ordered if name and (m := form.match(name)) is not None]
        if not matches:
            forms = ", ".join(f.syntax for f in _nearest(instruction.name, known))
            raise self._error(
                "the CPU backend does not execute this form of the instruction",
                f"it knows {forms}: {CPU_ALTERNATIVE}",
            )
        for match in matches:
            operands = _pair_operands(match, instruction.operands)
            if operands is not None:
                return match, operands
        raise self._error(
            "the operands are not those of this instruction",
            f"they are written as: {' or '.join(m.form.operand_text or 'none' for m in matches)}",
        )


def _storage(kind: str) -> str:
    """Return the C++ type of a register's variable."""
    return "bool" if kind == "pred" else TYPES[f"b{TYPES[kind][1]}"][0]


def _label(name: str) -> str:
    return f"coh_label_{re.sub(r'[^A-Za-z0-9]', '_', name)}"


def _label_declaration(labels: list[str] | tuple[str, ...]) -> str:
    return f"__label__ {', '.join(_label(name) for name in labels)};" if labels else ""


def _top_level_labels(steps: list[Step]) -> list[Label]:
    depth = 0
    labels = []
    for step in steps:
        depth += isinstance(step, OpenScope) - isinstance(step, CloseScope)
        if isinstance(step, Label) and depth == 0:
            labels.append(step)
    return labels


def _pair_operands(match: Match, texts: tuple[str, ...]) -> list[tuple[OperandForm, str]] | None:
    """Return operands of the form with their text; None if number or shape differ."""
    forms = match.operands()
    optional = [form for form in forms if form.default is not None]
    missing = len(forms) - len(texts)
    if not 0 <= missing <= len(optional):
        return None
    left_out = optional[len(optional) - missing :]
    given = iter(texts)
    pairs = []
    for form in forms:
        text = form.default if form in left_out and form.default is not None else next(given)
        if not _has_shape(match, form, text):
            return None
        pairs.append((form, text))
    return pairs


def _has_shape(match: Match, form: OperandForm, text: str) -> bool:
    if match.kind_of(form) in ("shared", "cluster", "global", "tensor"):
        return text.startswith("[")
    count = match.count(form)
    if count is None:
        return text[0] not in "[{"
    return len(elements(text)) == count and not text.startswith("[")


def _nearest(name: str, forms: list[Form]) -> list[Form]:
    """Return up to three forms with the longest common prefix with the name."""
    words = name.split(".")

    def agreement(form: Form) -> int:
        return sum(f".{word}" in f".{form.syntax}" or word in form.syntax for word in words)

    return sorted(forms, key=agreement, reverse=True)[:3]
