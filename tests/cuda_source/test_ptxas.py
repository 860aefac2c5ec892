"""Reading resources and errors from the logs of ptxas and NVRTC."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from words import says

from engine.cuda_source.host_code import host_lines
from engine.cuda_source.ptxas import (
    PtxasInfo,
    first_error,
    locate_ptx_errors,
    parse_ptxas,
    ptx_error_lines,
)


def info(registers: int, smem: int, store: int, load: int, stack: int) -> PtxasInfo:
    return PtxasInfo(registers, smem, store, load, stack)


@pytest.mark.parametrize(
    ("log", "g"),
    [
        ("nvrtc_12_4.txt", info(64, 0, 1860, 1764, 720)),
        ("nvrtc_13_4.txt", info(64, 0, 1876, 1776, 728)),
    ],
)
def test_real_logs_of_cuda_12_and_13(log: str, g: PtxasInfo, data: Path) -> None:
    found = parse_ptxas((data / "logs" / log).read_text())
    # The device function that was not inlined comes last, with its own stack frame.
    assert found == {"g": g, "f": info(32, 256, 0, 0, 256)}


def test_the_command_line_ptxas_writes_the_same_with_other_spaces() -> None:
    log = (
        "ptxas info    : Compiling entry function 'k' for 'sm_75'\n"
        "ptxas info    : Function properties for k\n"
        "    16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\n"
        "ptxas info    : Used 40 registers, 4096+32 bytes smem, 380 bytes cmem[0]\n"
    )
    assert parse_ptxas(log) == {"k": info(40, 4128, 4, 8, 16)}


def test_warnings_between_lines_are_ignored() -> None:
    log = (
        'a.cu(3): warning #177-D: variable "x" was declared but never referenced\n'
        "ptxas info    : 0 bytes gmem, 24 bytes cmem[4]\n"
        "ptxas info    : Compiling entry function 'k' for 'sm_90a'\n"
        "ptxas warning : Value of threads per SM for entry k is out of range.\n"
        "ptxas info    : Function properties for k\n"
        "ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async serialized\n"
        "ptxas info    : Used 168 registers, used 3 barriers, 98304 bytes smem\n"
        "ptxas info    : Compile time = 7.475 ms\n"
    )
    assert parse_ptxas(log) == {"k": info(168, 98304, 0, 0, 0)}


numbers = st.integers(0, 300_000)


@given(
    entries=st.dictionaries(
        st.from_regex(r"[a-z_][a-z0-9_]{0,12}", fullmatch=True),
        st.builds(PtxasInfo, st.integers(0, 255), numbers, numbers, numbers, numbers),
        max_size=4,
    ),
    with_barriers=st.booleans(),
    helper_after=st.booleans(),
)
def test_arbitrary_figures_are_parsed(
    entries: dict[str, PtxasInfo], with_barriers: bool, helper_after: bool
) -> None:
    lines = ["ptxas info    : 0 bytes gmem"]
    for name, x in entries.items():
        lines += [
            f"ptxas info    : Compiling entry function '{name}' for 'sm_89'",
            f"ptxas info    : Function properties for {name}",
            f"ptxas         .     {x.stack_bytes} bytes stack frame, {x.spill_store_bytes} bytes "
            f"spill stores, {x.spill_load_bytes} bytes spill loads",
            f"ptxas info    : Used {x.registers_per_thread} registers"
            + (", used 1 barriers" if with_barriers else "")
            + (f", {x.static_smem_bytes} bytes smem" if x.static_smem_bytes else "")
            + ", 400 bytes cmem[0]",
        ]
        if helper_after:
            lines += [
                "ptxas info    : Function properties for _Z6helperPf",
                "ptxas         .     9 bytes stack frame, 9 bytes spill stores, "
                "9 bytes spill loads",
            ]
    assert parse_ptxas("\n".join(lines)) == entries


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            'v01.cu(12): error: identifier "x" is undefined',
            'v01.cu(12): identifier "x" is undefined',
        ),
        ("common.cuh(3): error #20: nope", "common.cuh(3): nope"),
        (
            "v01.cu(1): catastrophic error: #error directive: no",
            "v01.cu(1): #error directive: no",
        ),
        (
            "ptxas application ptx input, line 31; error   : Not a name of any known instruction",
            "v01.cu: Not a name of any known instruction",
        ),
        (
            "ptxas error   : Entry function 'f' uses too much shared data (0x1d4c0 bytes)",
            "v01.cu: Entry function 'f' uses too much shared data (0x1d4c0 bytes)",
        ),
        ("nvrtc: error: failed to open builtins", "v01.cu: failed to open builtins"),
    ],
)
def test_the_first_error_is_found(line: str, message: str) -> None:
    log = f"v01.cu(2): warning #177-D: unused\n{line}\nv01.cu(99): error: a later one\n"
    assert first_error(log, "v01.cu") == message


def test_errors_in_host_code_come_after_those_in_device_code() -> None:
    """Host code is kept if a bracket is missing."""
    host = "void run(float* p) {\n  cudaMalloc(&p, 4);\n}\n"
    device = "__global__ void\nk(float* p) {\n  p[0] = 1\n"
    code = f"{host}{device}{host}"
    assert host_lines(code) == {1, 2, 3, 7, 8, 9}
    assert host_lines(f"{host}{device}}}\n") == set()
    log = 'k.cu(2): error: identifier "cudaMalloc" is undefined\n'
    more = 'k.cu(6): error: expected a ";"\n'
    opened = 'At end of source: error: expected a "}"\nk.cu(5): note #3196-D: to match this "{"\n'
    host_places = {f"k.cu({line})" for line in host_lines(code)}
    assert first_error(log + more, "k.cu", host_places) == 'k.cu(6): expected a ";"'
    assert first_error(log + opened, "k.cu", host_places) == 'k.cu(5): expected a "}"'
    assert first_error(log, "k.cu", host_places).startswith("k.cu(2): ")


def test_a_log_without_an_error_gives_a_message() -> None:
    assert says(first_error("", "v01.cu"), "compiler_failed_without", "v01.cu")


PTX = """
.visible .entry f(
)
{
\t.loc\t1 3 3
\tadd.u32 %r1, %r2, 1;
\t.loc\t2 7 1
\tbogus.u32 %r3, 1;
}
.visible .entry g(
)
{
\tbogus.u32 %r3, 1;
}
\t.file\t1 "/somewhere/a.cu"
\t.file\t2 "/somewhere/b.cuh"
"""


def ptx_error(line: int) -> str:
    return f"ptxas application ptx input, line {line}; error   : Unknown 'bogus'"


def test_a_ptx_line_is_traced_to_its_source_line() -> None:
    lines = PTX.splitlines()
    assert lines[7] == "\tbogus.u32 %r3, 1;"
    assert ptx_error_lines(ptx_error(8)) == [8]
    assert locate_ptx_errors(ptx_error(8), PTX) == "b.cuh(7): error: in PTX: Unknown 'bogus'"


def test_a_line_of_another_function_is_not_blamed() -> None:
    assert PTX.splitlines()[12] == "\tbogus.u32 %r3, 1;"
    assert locate_ptx_errors(ptx_error(13), PTX) == ptx_error(13)


def test_without_the_ptx_the_log_is_unchanged() -> None:
    assert locate_ptx_errors(ptx_error(8), "") == ptx_error(8)
