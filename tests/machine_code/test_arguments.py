"""Arguments in the notation of the command line."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from words import raises

from engine.base.errors import InvalidCubin, InvalidProblem, UnknownName
from engine.cuda_source import compile_kernel
from engine.machine_code.analysis import analyse, has_guessed_addresses, launch_figures
from engine.machine_code.cubin import Cubin, Entry, Parameter, read_cubin
from engine.machine_code.disassembly import Program, find_entry
from engine.machine_code.emulation import Emulator
from engine.machine_code.launch import (
    Launch,
    arguments_and_memory,
    constant_bank,
    parse_arguments,
    tables,
)


def test_every_pointer_has_an_aligned_address_of_its_own() -> None:
    first, structure, last = parse_arguments(["ptr", "bytes:0a@ptr@ptr", "ptr"])
    inner = struct.unpack("<QQ", structure[1:])
    addresses = [*struct.unpack("<Q", first), *inner, *struct.unpack("<Q", last)]
    assert structure[0] == 10
    assert len(set(addresses)) == 4
    assert all(a % 256 == 0 for a in addresses)


def test_numbers() -> None:
    values = parse_arguments(["i32:-2", "u64:0x10", "f32:0.125", "u8:255", "f64:2"])
    assert values == (
        b"\xfe\xff\xff\xff",
        b"\x10" + bytes(7),
        struct.pack("<f", 0.125),
        b"\xff",
        struct.pack("<d", 2.0),
    )


@pytest.mark.parametrize(
    "text", ["", "i32", "i32:", "i32:1.5", "int:4", "bytes:0g", "bytes:@pt", "f32:x", "pointer"]
)
def test_invalid_arguments_give_one_sentence(text: str) -> None:
    with raises(InvalidProblem, "argument_form"):
        parse_arguments([text])


def test_a_number_too_large_for_its_parameter() -> None:
    with raises(InvalidProblem, "argument_range", "300", "u8"):
        parse_arguments(["u8:300"])


@pytest.mark.parametrize("offset", [9, 12, 0xFFFF])
def test_a_parameter_outside_of_the_parameters_is_a_damaged_cubin(
    offset: int, tmp_path: Path
) -> None:
    source = tmp_path / "k.cu"
    source.write_text('extern "C" __global__ void k(float* x, int n) { x[n] = 1.0f; }')
    whole = compile_kernel(source, (), "sm_90", ("k",)).cubin
    # EIATTR_KPARAM_INFO of the second one: its number, its offset, and 4 bytes in the upper bits.
    there = struct.pack("<HH", 1, 8)
    at = whole.index(struct.pack("<BBH", 4, 0x17, 12))
    places = [n for n in range(at, at + 64, 4) if whole[n : n + 4] == there]
    assert len(places) == 1
    assert read_cubin(whole).entries["k"].parameters[1] == Parameter(8, 4)
    moved = whole[: places[0] + 2] + struct.pack("<H", offset) + whole[places[0] + 4 :]
    with raises(InvalidCubin, "cubin_parameter_outside", "12"):
        read_cubin(moved)


def test_arguments_are_at_the_offsets_of_the_parameters() -> None:
    entry = Entry("k", 8, 0, 0, (Parameter(0, 8), Parameter(8, 4)), 0x160, {})
    launch = Launch((2, 3, 4), (32, 1, 1), 0, (bytes(range(8)), b"\x07\0\0\0"))
    bank = constant_bank(entry, "sm_80", launch)
    assert bank[0x160:0x16C] == bytes(range(8)) + b"\x07\0\0\0"
    assert struct.unpack_from("<6I", bank) == (32, 1, 1, 2, 3, 4)
    late = constant_bank(entry, "sm_120", launch)
    assert struct.unpack_from("<3I", late, 0x370) == (2, 3, 4)


@pytest.mark.parametrize(
    ("arguments", "name", "facts"),
    [
        ((bytes(8),), "entry_arguments", ("2", "not 1")),
        ((bytes(8), bytes(8)), "entry_argument_bytes", ("2 of k", "4 bytes")),
    ],
)
def test_arguments_that_do_not_fit(
    arguments: tuple[bytes, ...], name: str, facts: tuple[str, ...]
) -> None:
    entry = Entry("k", 8, 0, 0, (Parameter(0, 8), Parameter(8, 4)), 0x160, {})
    with raises(InvalidProblem, name, *facts):
        constant_bank(entry, "sm_80", Launch((1, 1, 1), (32, 1, 1), 0, arguments))


@pytest.mark.parametrize(
    ("grid", "block", "name", "facts"),
    [
        ((2**31, 1, 1), (32, 1, 1), "launch_beyond_limits", ("grid", "2,147,483,648, 1, 1")),
        ((1, 65_536, 1), (32, 1, 1), "launch_beyond_limits", ("grid", "1, 65,536, 1")),
        ((1, 1, 1), (1, 1, 65), "launch_beyond_limits", ("block", "1, 1, 65")),
        ((1, 1, 1), (1024, 2, 1), "launch_threads_most", ("1024", "2048")),
    ],
)
def test_a_launch_that_cuda_refuses(
    grid: tuple[int, int, int], block: tuple[int, int, int], name: str, facts: tuple[str, ...]
) -> None:
    entry = Entry("k", 8, 0, 0, (), 0x160, {})
    program = Program("k", "sm_80", (), 8, 0, "")
    with raises(InvalidProblem, name, *facts):
        Emulator(program, entry, Launch(grid, block, 0, ()))


def test_a_tensor_map_is_read_innermost_dimension_first() -> None:
    before, tensor_map = parse_arguments(["ptr", "tensormap:f16[4096,512]box[64,128]swizzle128"])
    base, rank, element_bytes = struct.unpack_from("<QII", tensor_map, 8)
    assert (len(tensor_map), rank, element_bytes) == (128, 2, 2)
    assert base == struct.unpack("<Q", before)[0] + (1 << 32)  # a separate buffer
    assert struct.unpack_from("<2I", tensor_map, 28) == (64, 128)
    assert struct.unpack_from("<2I", tensor_map, 48) == (4096, 512)
    assert struct.unpack_from("<Q", tensor_map, 72)[0] == 2 * 4096


@pytest.mark.parametrize(
    ("text", "name", "facts"),
    [
        ("tensormap:f16[4096]", "argument_form", ()),
        ("tensormap:f16[4096,,]box[64]", "argument_form", ()),
        ("tensormap:half[4096]box[64]", "tensor_map_type", ("half",)),
        ("tensormap:f16[4096,4096]box[64]", "tensor_map_box_rank", ("2 and 1",)),
        ("tensormap:f16[0]box[64]", "tensor_map_elements", ()),
        ("tensormap:f16[4096,4096]box[128,64]swizzle128", "tensor_map_swizzle", ("128 bytes",)),
        ("tensormap:f16[4096,4096]box[64,0]", "tensor_map_box", ("1 to 256",)),
    ],
)
def test_invalid_tensor_maps_give_one_sentence(
    text: str, name: str, facts: tuple[str, ...]
) -> None:
    with raises(InvalidProblem, name, *facts):
        parse_arguments([text])


def test_a_name_expression_names_a_cubins_entry() -> None:
    entries = {
        symbol: Entry(symbol, 8, 0, 0, (), 0x160, {})
        for symbol in (
            "_ZN5flash3fwdILi64ELb1EEEvPfi",
            "_ZN5flash3fwdILi32ELb0EEEvPfi",
            "_Z5scalePf",
        )
    }
    cubin = Cubin("sm_90", b"", entries)
    assert find_entry(cubin, "flash::fwd<64, true>").name == "_ZN5flash3fwdILi64ELb1EEEvPfi"
    assert find_entry(cubin, "flash::fwd<32,false>").name == "_ZN5flash3fwdILi32ELb0EEEvPfi"
    with raises(UnknownName, "entry_unknown", "'flash::fwd<16, true>'"):
        find_entry(cubin, "flash::fwd<16, true>")
    with raises(UnknownName, "entry_ambiguous", "'fwd'"):
        find_entry(cubin, "fwd")


# Each CTA reads the rows that a table names.
GATHER = """
extern "C" __global__ void k(const int* table, const float* rows, float* out) {
  out[blockIdx.x * blockDim.x + threadIdx.x] = rows[table[threadIdx.x] * 8];
}
"""


def test_a_table_in_a_file_decides_addresses(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(GATHER)
    cubin = compile_kernel(tmp_path / "k.cu", (), "sm_80", ()).cubin

    def sectors(first: str) -> int | None:
        arguments, contents = arguments_and_memory([first, "ptr", "ptr"])
        launch = Launch((1, 1, 1), (32, 1, 1), 0, arguments, tables(contents))
        analysis = analyse(cubin, None, launch)
        guessed = has_guessed_addresses(analysis)
        return None if guessed else launch_figures(analysis.counts).global_sectors

    assert sectors("ptr") is None
    path = tmp_path / "table.bin"
    for numbers, rows in ((range(32), 32), ([3] * 32, 1)):
        path.write_bytes(struct.pack("<32i", *numbers))
        assert sectors(f"file:{path}") == 4 + rows + 4


def test_an_unreadable_or_third_table_gives_a_message(tmp_path: Path) -> None:
    with raises(UnknownName, "file_failed", "none.bin"):
        parse_arguments([f"file:{tmp_path / 'none.bin'}"])
    (tmp_path / "t").write_bytes(bytes(8))
    _, contents = arguments_and_memory([f"file:{tmp_path / 't'}"] * 3)
    with raises(InvalidProblem, "launch_tables", "3"):
        tables(contents)
