"""One asm statement → one line of C++, a `do {...} while (0)` that executes its instructions.

The operands are read into variables, registers of the PTX are variables beside them, each
instruction is a block of its own, and the outputs are written at the end. `{ }` of the PTX is a
scope, `@p` an if, a label a local label of the GNU dialect. Nothing is guessed: what the table does
not know is an error with the text of the instruction.
"""

from __future__ import annotations

import re

from engine.cuda_on_host.ptx.forms import FORMS, TYPES, Form, Match, OperandForm
from engine.cuda_on_host.ptx.grammar import (
    AsmStatement,
    CloseScope,
    Declaration,
    Instruction,
    Label,
    OpenScope,
    PtxSyntaxError,
    Step,
    parse_ptx,
)
from engine.cuda_on_host.ptx.operands import CPU_ALTERNATIVE, Operands, Register, elements

# The type of a constraint's register, as nvcc declares it.
_CONSTRAINTS = {"h": "b16", "r": "b32", "l": "b64", "q": "b128", "f": "f32", "d": "f64"}


def emit_statement(statement: AsmStatement, site: str) -> str:
    """The C++ of a statement; `site` is the expression for the line that errors name.

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
            # Here and not in the header, so that the message has the statement's line.
            message = (
                f'operand %{number} does not have the size and kind of constraint \\"{kind}\\"'
            )
            code.append(
                f"static_assert(coh::ptx::fits<'{kind}', decltype({place})>(), \"{message}\");"
            )
            if f"%{number}" in self._in_place:
                continue
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
    """The C++ type of a register's variable."""
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
    """Operands of the form with their text; None when number or shape differ."""
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
    """The forms whose beginning agrees longest with the name, three at most."""
    words = name.split(".")

    def agreement(form: Form) -> int:
        return sum(f".{word}" in f".{form.syntax}" or word in form.syntax for word in words)

    return sorted(forms, key=agreement, reverse=True)[:3]
