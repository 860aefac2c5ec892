"""Local variables that are read before they are written are found if they change the output."""

from __future__ import annotations

import re

import planted
import pytest
from host_kernels import KERNELS, line_of

from engine.base.errors import Status
from engine.cuda_on_host.error_kinds import ErrorKind

FILE = "locals.cu"
BUGS = {
    "accumulator": "sum",
    "maximum_that_ignores_nan": "largest",
    "one_element_of_an_array": "acc",
    "last_in_a_list": "third",
    "shifted_index": "shift",
    "flag": "seen",
    "pair_of_halves": "pair",
    "in_a_template": "sum",
    "member": "row",
}


@pytest.fixture(scope="module")
def library():
    return planted.library(FILE, check=True)


@pytest.mark.parametrize("entry", BUGS)
def test_an_uninitialised_variable_is_named_with_its_line(client, library, entry):
    result = planted.run(client, library, entry, repeat=True)
    assert result.status is Status.LAUNCH_ERROR
    line = line_of(KERNELS / FILE, f"BUG {entry}")
    assert result.kind is ErrorKind.LOCAL_UNINITIALISED
    assert result.reason.startswith(f"{FILE}:{line}: {result.kind}: '{BUGS[entry]}'")


@pytest.mark.parametrize("entry", sorted(set(planted.entries_of(FILE)) - set(BUGS)))
def test_no_false_alarm(client, library, entry):
    for schedule in ("in_order", "random", "reverse"):
        result = planted.run(client, library, entry, repeat=True, schedule=schedule)
        assert result.status is Status.PASSED, result.reason
        assert result.repeatable


def test_every_kernel_is_tested():
    text = (KERNELS / FILE).read_text()
    assert set(re.findall(r"// BUG (\w+)", text)) == set(BUGS)
