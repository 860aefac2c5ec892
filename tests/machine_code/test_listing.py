"""Parsing nvdisasm's text: control bits, operands, inlined lines, names; the tool is not needed."""

from __future__ import annotations

import pytest
from words import raises

from engine.base.errors import UnknownName
from engine.machine_code.cubin import Cubin, Entry
from engine.machine_code.disassembly import (
    NO_BARRIER,
    Pipe,
    SourceLine,
    decode_control,
    find_entry,
    find_loops,
    parse_listing,
    parse_live,
    plain_name,
    split_operands,
)

LISTING = """
\t.section\t.text.k,"ax",@progbits
k:
.text.k:
\t//## File "/x/element.cuh", line 7 inlined at "/x/k.cu", line 12
\t//## File "/x/k.cu", line 12
        /*0000*/                   LDS.U.128 R4, [R2+0x10] ;    /* 0x0000000007887f8c */
   /* 0x000e220000000800 */
.L_x_1:
        /*0010*/              @!P0 IADD3 R8, P1, R6.reuse, R7, RZ ;  /* 0x0000000709097219 */
   /* 0x041fe40000001200 */
\t//## File "/x/k.cu", line 14
        /*0020*/               @P2 BRA `(.L_x_1) ;              /* 0x0000000000007918 */
   /* 0x000fea0003800000 */
        /*0030*/                   BRA `(.L_x_2);               /* 0x0000000000007918 */
   /* 0x000fc00000000000 */
.L_x_2:
"""


def test_all_fields_of_an_instruction_are_read() -> None:
    load, add, branch, _ = parse_listing(LISTING)["k"]
    assert (load.opcode, load.modifiers, load.operands) == (
        "LDS",
        ("U", "128"),
        ("R4", "[R2+0x10]"),
    )
    assert load.pipe is Pipe.SHARED
    assert load.source == (SourceLine("element.cuh", 7), SourceLine("k.cu", 12))
    assert load.control.write_barrier == 0
    assert add.predicate == "!P0"
    assert add.operands == ("R8", "P1", "R6.reuse", "R7", "RZ")
    assert add.control.wait_mask == 1
    assert add.source == load.source
    assert branch.target == 0x10
    assert branch.source == (SourceLine("k.cu", 14),)
    assert str(branch) == "@P2 BRA `(.L_x_1)"


def test_a_backward_branch_closes_a_loop() -> None:
    (loop,) = find_loops(parse_listing(LISTING)["k"])
    assert (loop.first, loop.last, loop.depth) == (1, 2, 0)


def test_control_bits() -> None:
    control = decode_control(0x000FE20000000000)
    assert (control.stall, control.write_barrier, control.read_barrier) == (
        1,
        NO_BARRIER,
        NO_BARRIER,
    )
    assert not decode_control(0x000FE200078E00FF).yield_hint
    assert decode_control(0x000FEA0003800000).stall == 5
    assert decode_control(0x041FE40000001200).reuse == 1


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ()),
        ("R4, c[0x0][0x160], [R2.64+0x8]", ("R4", "c[0x0][0x160]", "[R2.64+0x8]")),
        ('R4 -0x610  (*"A .L_1,.L_2"*)', ('R4 -0x610  (*"A .L_1,.L_2"*)',)),
    ],
)
def test_operands_are_split_at_commas_outside_brackets(text: str, parts: tuple[str, ...]) -> None:
    assert split_operands(text) == parts


def test_live_registers() -> None:
    text = """.text.k:
        /*0000*/   MOV R1, R2 ;   // |  16   |   5    |
        /*0010*/   EXIT ;         // |       |        |
"""
    assert parse_live(text) == {"k": {0: 16, 0x10: 0}}


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("sgemm", "sgemm"),
        ("_Z5sgemmiiPf", "sgemm"),
        ("_ZN4mine5sgemmEv", "sgemm"),
        ("_Z3fwdILi64ELb1EEvPf", "fwd"),
        ("_ZTS", "_ZTS"),
    ],
)
def test_a_symbol_has_a_plain_name(symbol: str, name: str) -> None:
    assert plain_name(symbol) == name


def test_an_entry_is_found_by_its_plain_name_if_it_is_the_only_one() -> None:
    names = ("_Z1fi", "_Z1ff", "_Z1gi")
    entries = {n: Entry(n, 8, 0, 0, (), 0x160, {}) for n in names}
    cubin = Cubin("sm_80", b"", entries)
    assert find_entry(cubin, "g").name == "_Z1gi"
    assert find_entry(cubin, "_Z1ff").name == "_Z1ff"
    with raises(UnknownName, "entry_ambiguous", "'f'"):
        find_entry(cubin, "f")
    with raises(UnknownName, "entry_not_chosen", "3"):
        find_entry(cubin, None)
    with raises(UnknownName, "entry_unknown", "'h'"):
        find_entry(cubin, "h")
