"""Occupancy equals that of NVIDIA's `cuda_occupancy.h`, compiled here.

The header comes with the toolkit wheels. It is given the properties that a driver reports (our
`SmLimits`, which `tests/devices` checks against the programming guide) and knows the allocation
rules itself.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from engine.devices.spec import SM_LIMITS, SmLimits
from engine.model.occupancy import ctas_per_sm, occupancy

CASES_PER_CAPABILITY = 20_000
HEADER = "cuda_occupancy.h"

# Reads int32 rows (major, minor, threads/SM, smem/SM, smem opt-in, reserved smem, CTA threads,
# registers, static smem, dynamic smem), writes (status, CTAs/SM, factors, then CTAs allowed by
# registers, shared memory, warps, slots).
DRIVER = r"""
#include <cstdint>
#include <cstdio>
#include <vector>
#include "cuda_occupancy.h"

int main() {
    int32_t in[10];
    std::vector<int32_t> out;
    while (fread(in, sizeof(int32_t), 10, stdin) == 10) {
        cudaOccDeviceProp prop;
        prop.computeMajor = in[0];
        prop.computeMinor = in[1];
        prop.maxThreadsPerBlock = 1024;
        prop.maxThreadsPerMultiprocessor = in[2];
        prop.regsPerBlock = 65536;
        prop.regsPerMultiprocessor = 65536;
        prop.warpSize = 32;
        prop.sharedMemPerBlock = 48 * 1024;
        prop.sharedMemPerMultiprocessor = in[3];
        prop.numSms = 58;
        prop.sharedMemPerBlockOptin = in[4];
        prop.reservedSharedMemPerBlock = in[5];
        cudaOccFuncAttributes attr;
        attr.maxThreadsPerBlock = 1024;
        attr.numRegs = in[7];
        attr.sharedSizeBytes = in[8];
        attr.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        attr.maxDynamicSharedSizeBytes = in[9];
        attr.numBlockBarriers = 1;
        cudaOccDeviceState state;
        cudaOccResult r;
        int status =
            cudaOccMaxActiveBlocksPerMultiprocessor(&r, &prop, &attr, &state, in[6], in[9]);
        for (int x : {status, r.activeBlocksPerMultiprocessor, (int)r.limitingFactors,
                      r.blockLimitRegs, r.blockLimitSharedMem, r.blockLimitWarps,
                      r.blockLimitBlocks})
            out.push_back(x);
    }
    fwrite(out.data(), sizeof(int32_t), out.size(), stdout);
}
"""


def find_header() -> Path | None:
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []
    roots += [Path(os.environ[k]) for k in ("CUDA_PATH", "CUDA_HOME") if os.environ.get(k)]
    for root in roots:
        for found in sorted(root.glob(f"**/{HEADER}")):
            return found
    return None


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    header = find_header()
    if header is None:
        pytest.skip(f"{HEADER} is not installed (it comes with the extra cuda13)")
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("occupancy_oracle")
    source, program = folder / "oracle.cpp", folder / "oracle"
    source.write_text(DRIVER, encoding="utf-8")
    command = [compiler, "-O1", "-std=c++17", f"-I{header.parent}", str(source), "-o", str(program)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return program


def ask(oracle: Path, limits: SmLimits, cases: np.ndarray) -> np.ndarray:
    """Return the oracle's results [n, 7] for (threads, registers, static, dynamic smem) [n, 4]."""
    fixed = [
        *limits.compute_capability,
        limits.max_threads_per_sm,
        limits.smem_per_sm_bytes,
        limits.smem_per_cta_optin_bytes,
        limits.reserved_smem_per_cta_bytes,
    ]
    rows = np.hstack([np.tile(fixed, (len(cases), 1)), cases]).astype(np.int32)
    done = subprocess.run(
        [str(oracle)], input=rows.tobytes(), capture_output=True, check=True, timeout=120
    )
    return np.frombuffer(done.stdout, dtype=np.int32).reshape(-1, 7)


def random_cases(limits: SmLimits, rng: np.random.Generator) -> np.ndarray:
    """Return cases, uniform and with more of them at the limits of every rule."""
    n = CASES_PER_CAPABILITY
    optin = limits.smem_per_cta_optin_bytes
    threads = rng.integers(1, 1025, n)
    registers = rng.integers(0, 256, n)
    smem = rng.integers(0, optin + 1, n)
    edge = rng.random(n) < 0.5
    threads = np.where(edge & (rng.random(n) < 0.5), 32 * rng.integers(1, 33, n), threads)
    unit = limits.smem_allocation_unit_bytes
    near = unit * rng.integers(0, optin // unit + 1, n) + rng.integers(-1, 2, n)
    smem = np.where(edge & (rng.random(n) < 0.5), np.clip(near, 0, optin), smem)
    smem = np.where(rng.random(n) < 0.1, 0, smem)
    smem = np.where(rng.random(n) < 0.05, optin, smem)
    static = np.minimum(smem, rng.integers(0, 48 * 1024 + 1, n))
    return np.stack([threads, registers, static, smem - static], axis=1)


@pytest.mark.parametrize("limits", SM_LIMITS.values(), ids=lambda x: str(x.compute_capability))
def test_occupancy_equals_the_oracle(oracle: Path, limits: SmLimits) -> None:
    rng = np.random.default_rng(sum(limits.compute_capability))
    cases = random_cases(limits, rng)
    theirs = ask(oracle, limits, cases)
    assert len(theirs) == CASES_PER_CAPABILITY
    assert (theirs[:, 0] == 0).all(), "the oracle rejects the device or a case"

    threads, registers, static, dynamic = cases.T
    ours = ctas_per_sm(limits, threads, registers, static + dynamic)
    resident = ours.resident
    np.testing.assert_array_equal(resident, theirs[:, 1])
    # The oracle gives INT_MAX for an unused resource, the model the SM's CTA slots.
    slots = limits.max_ctas_per_sm
    unlimited = np.iinfo(np.int32).max
    for mine, column in ((ours.registers, 3), (ours.smem, 4), (ours.warps, 5), (ours.ctas, 6)):
        expected = np.where(theirs[:, column] == unlimited, slots, theirs[:, column])
        np.testing.assert_array_equal(mine, expected)
    # Limiting factors: bits 1 warps, 2 registers, 4 shared memory, 8 CTAs.
    for mine, bit, column in (
        (ours.warps, 1, 5),
        (ours.registers, 2, 3),
        (ours.smem, 4, 4),
        (ours.ctas, 8, 6),
    ):
        used = theirs[:, column] != unlimited
        flagged = (theirs[:, 2] & bit) != 0
        np.testing.assert_array_equal((mine == resident)[used], flagged[used])


def test_more_than_a_hundred_thousand_combinations() -> None:
    assert CASES_PER_CAPABILITY * len(SM_LIMITS) >= 100_000


def test_scalar_and_vectorised_occupancy_are_equal(oracle: Path) -> None:
    rng = np.random.default_rng(7)
    for limits in SM_LIMITS.values():
        cases = random_cases(limits, rng)[:50]
        theirs = ask(oracle, limits, cases)
        for (threads, registers, static, dynamic), answer in zip(
            cases.tolist(), theirs.tolist(), strict=True
        ):
            got = occupancy(limits, 58, 1, threads, registers, static + dynamic)
            assert got.ctas_per_sm == answer[1]


def test_the_oracle_detects_a_wrong_result(oracle: Path) -> None:
    """The comparison can fail: the limits of another SM give other results."""
    cases = random_cases(SM_LIMITS[(8, 9)], np.random.default_rng(1))
    theirs = ask(oracle, SM_LIMITS[(8, 9)], cases)
    threads, registers, static, dynamic = cases.T
    wrong = ctas_per_sm(SM_LIMITS[(8, 0)], threads, registers, static + dynamic)
    assert (wrong.resident != theirs[:, 1]).mean() > 0.1
