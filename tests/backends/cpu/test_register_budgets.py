"""setmaxnreg: warpgroups that ask for more registers than an SM has are told so."""

from __future__ import annotations

from pathlib import Path

from engine.base.launch import TensorArg
from engine.base.status import Status
from engine.cuda_on_host.build import build_kernels
from engine.cuda_on_host.client import Client
from engine.cuda_on_host.job import Buffer, Job, JobResult, KernelLaunch

SOURCE = """\
template <int PRODUCER>
__global__ void budgets(int* out) {
    if (threadIdx.x < 128) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER));
    else asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    out[threadIdx.x] = 1;
}
template __global__ void budgets<24>(int*);
template __global__ void budgets<40>(int*);
"""


def test_no_warp_waits_for_registers_that_nobody_gives_back(client: Client, tmp_path: Path) -> None:
    source = tmp_path / "budgets.cu"
    source.write_text(SOURCE)
    entries = ("budgets<24>", "budgets<40>")
    library = build_kernels(source, entries, (), check=False)

    def run(entry: str) -> JobResult:
        launch = KernelLaunch(entry, (2, 1, 1), (384, 1, 1), (TensorArg("out"),))
        out = Buffer("out", size_bytes=4 * 384, returned=True)
        return client.run(Job(library, (out,), (launch,)), 30.0)

    assert run("budgets<24>").status is Status.PASSED
    result = run("budgets<40>")
    assert result.status is Status.LAUNCH_ERROR
    assert result.reason.startswith("budgets.cu:")
    # 128 threads of 40, as many of 240, and 32 more of 240 bring it past the limit at last.
    assert "setmaxnreg waits for ever" in result.reason
    assert "and an SM has 65536: let some warps keep fewer" in result.reason
