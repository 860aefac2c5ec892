"""A kernel that prints without end does not fill the disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from words import says

from engine.attention.config import VARIABLE
from engine.attention.problem import Problem
from engine.backends.cpu import CpuBackend
from engine.base.errors import Status
from engine.cuda_on_host.client import Client
from engine.pipeline.evaluate import Evaluator
from engine.pipeline.request import EvaluationRequest

SOURCE = """\
/* attune
head_dims = [32]

[[passes]]
entry = "chatty"
grid = [1, 1, 1]
threads = 32
args = ["q", "k", "v", "out", "seqlen"]
*/
#include <cstdio>
#include <cuda_fp16.h>
extern "C" __global__ void chatty(const half* q, const half* k, const half* v, half* o, int n) {
  for (int i = 0; i >= 0 || n; i = (i + 1) & 1023) printf("%d of %d and on it goes\\n", i, n);
}
"""


@pytest.mark.slow
def test_a_printing_kernel_is_stopped_and_its_last_output_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "chatty.cu").write_text(SOURCE)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    request = EvaluationRequest("chatty", Problem(1, 1, 32, 32), {}, gpu="L4", backend="cpu")
    cpu = CpuBackend(Client(most_printed_bytes=1 << 20))
    with Evaluator(backends={"cpu": cpu}) as evaluator:
        found = evaluator.evaluate(request).evaluation
    assert found.status is Status.CRASHED
    assert says(found.reason, "printed_more_than", "1.0 MiB")
    assert "and on it goes" in found.log
    assert len(found.log) < 20_000
