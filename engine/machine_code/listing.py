"""nvdisasm's listing → instructions with control bits, branch targets and source lines."""

from __future__ import annotations

import re

from engine.base.errors import CompileError
from engine.machine_code.instruction import Control, Instruction, SourceLine, pipe_of

# Code only, encodings, lines with inlining. Without the analysis of branch stacks, which only GPUs
# before Volta have and which takes a quarter of the time.
LISTING_OPTIONS = ("-c", "-hex", "-gi", "-ndf")
LIVE_OPTIONS = ("-c", "-plr", "-lrm", "count")  # a run of its own: it switches -gi off

_SECTION = re.compile(r"^\.text\.(\S+?):(?:\s|$)")
_INSTRUCTION = re.compile(
    r"^\s+/\*(?P<address>[0-9a-f]{4,})\*/\s+(?:\{\s*)?(?:@(?P<predicate>!?U?P[\dT]+)\s+)?"
    r"(?P<mnemonic>[A-Z][A-Za-z0-9_.]*)\s*(?P<operands>.*?)\s*;?\s*(?:\})?\s*"
    r"/\* 0x(?P<low>[0-9a-f]{16}) \*/"
)
_HIGH_WORD = re.compile(r"^\s+/\* 0x([0-9a-f]{16}) \*/")
_SOURCE = re.compile(r'//## File "([^"]+)", line (\d+)')
_LABEL = re.compile(r"^(\S+):\s*$")
_TARGET = re.compile(r"`\((.*)\)$")
_LIVE = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/.*//\s*\|\s*(\d*)")
_CONTROL_SHIFT = 41  # of the high word: bit 105 of the instruction


def parse_listing(text: str, entry: str | None = None) -> dict[str, tuple[Instruction, ...]]:
    """Instructions by section ("attention_forward"), in address order.

    Args:
        text: what nvdisasm prints with `LISTING_OPTIONS`.
        entry: the only section to read; None reads all.

    Raises:
        CompileError: an instruction has no encoding beside it.
    """
    sections: dict[str, _Reader] = {}
    reader: _Reader | None = None
    for line in text.splitlines():
        if match := _SECTION.match(line):
            reader = None
            if entry in (None, match[1]):
                reader = sections[match[1]] = _Reader()
        elif line.startswith("//---"):
            reader = None
        elif reader is not None:
            reader.read(line)
    return {name: r.finish(name) for name, r in sections.items() if r.parts}


def parse_live(text: str) -> dict[str, dict[int, int]]:
    """{section: {address: general registers alive}}, from what `LIVE_OPTIONS` print."""
    sections: dict[str, dict[int, int]] = {}
    current: dict[int, int] | None = None
    for line in text.splitlines():
        if match := _SECTION.match(line):
            current = sections[match[1]] = {}
        elif current is not None and (match := _LIVE.match(line)):
            current[int(match[1], 16)] = int(match[2] or 0)
    return sections


def decode_control(high_word: int) -> Control:
    """The schedule in an instruction's upper 64 bits."""
    bits = high_word >> _CONTROL_SHIFT
    return Control(
        stall=bits & 15,
        yield_hint=not bits >> 4 & 1,  # stored inverted
        write_barrier=bits >> 5 & 7,
        read_barrier=bits >> 8 & 7,
        wait_mask=bits >> 11 & 63,
        reuse=bits >> 17 & 15,
    )


def split_operands(text: str) -> tuple[str, ...]:
    """At the commas outside brackets."""
    if "(" not in text and "[" not in text:
        return tuple(part.strip() for part in text.split(",")) if text else ()
    parts, depth, start = [], 0, 0
    for position, char in enumerate(text):
        if char in "[(":
            depth += 1
        elif char in ")]":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    return (*parts, text[start:].strip())


class _Reader:
    """One section of the listing, line by line."""

    def __init__(self) -> None:
        self.parts: list[tuple[int, str, str, str, tuple[SourceLine, ...]]] = []
        self.controls: list[Control] = []
        self.labels: dict[str, int] = {}
        self.waiting: list[str] = []  # labels of the next instruction
        self.source: tuple[SourceLine, ...] = ()
        self.chain_open = False  # the lines just read are one inlining chain

    def read(self, line: str) -> None:
        if match := _INSTRUCTION.match(line):
            address = int(match["address"], 16)
            self.labels.update((label, address) for label in self.waiting)
            self.waiting, self.chain_open = [], False
            predicate, operands = match["predicate"] or "", match["operands"]
            self.parts.append((address, predicate, match["mnemonic"], operands, self.source))
        elif match := _HIGH_WORD.match(line):
            if len(self.controls) < len(self.parts):
                self.controls.append(decode_control(int(match[1], 16)))
        elif match := _SOURCE.search(line):
            here = SourceLine(match[1].rpartition("/")[2], int(match[2]))
            self.source = (*self.source, here) if self.chain_open else (here,)
            self.chain_open = True
        elif match := _LABEL.match(line.strip()):
            self.waiting.append(match[1])

    def finish(self, name: str) -> tuple[Instruction, ...]:
        if len(self.controls) != len(self.parts):
            raise CompileError(
                f"nvdisasm prints {name} without the encodings that hold its schedule: it is for "
                "an architecture before Volta, which Attune does not read."
            )
        return tuple(map(self._instruction, self.parts, self.controls))

    def _instruction(
        self, part: tuple[int, str, str, str, tuple[SourceLine, ...]], control: Control
    ) -> Instruction:
        address, predicate, mnemonic, text, source = part
        opcode, *modifiers = mnemonic.split(".")
        operands = split_operands(text)
        target = None
        for operand in operands:
            if match := _TARGET.match(operand):
                target = self.labels.get(match[1])
        return Instruction(
            address=address,
            opcode=opcode,
            modifiers=tuple(modifiers),
            operands=operands,
            predicate=predicate,
            control=control,
            pipe=pipe_of(opcode),
            source=source,
            target=target,
        )
