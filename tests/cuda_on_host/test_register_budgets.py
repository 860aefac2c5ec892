"""setmaxnreg: errors for more registers than are free, and for wrong use."""

from __future__ import annotations

from pathlib import Path

from words import says

from engine.base.errors import Status
from engine.base.launch_arguments import TensorArg
from engine.cuda_on_host.build import build_kernels
from engine.cuda_on_host.client import Buffer, Client, Job, KernelLaunch, RunResult
from engine.cuda_on_host.error_kinds import ErrorKind

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


def test_register_requests_that_cannot_be_met_are_reported(client: Client, tmp_path: Path) -> None:
    source = tmp_path / "budgets.cu"
    source.write_text(SOURCE)
    entries = ("budgets<24>", "budgets<40>")
    library = build_kernels(source, entries, (), check=False)

    def run(entry: str) -> RunResult:
        launch = KernelLaunch(entry, (2, 1, 1), (384, 1, 1), (TensorArg("out"),))
        out = Buffer("out", size_bytes=4 * 384, returned=True)
        return client.run(Job(library, (out,), (launch,)), 30.0)

    assert run("budgets<24>").status is Status.PASSED
    result = run("budgets<40>")
    assert result.status is Status.LAUNCH_ERROR
    assert result.reason.startswith("budgets.cu:")
    # 128 threads give back 128 each; one consumer warpgroup takes 72, and 56 are left.
    assert result.kind is ErrorKind.REGISTERS_NEVER_FREE
    parts = f"{result.reason[:-1]};"  # the last part ends with a full stop
    assert says(parts, "waits_for_registers", "72 registers", "128 threads", "7168")


BY_CASE = """\
template <int CASE>
__global__ void changes(int* out) {
    const int warp = threadIdx.x / 32;
    if (CASE == 0) {  // the producer takes, and gives nothing back
        if (warp < 4) asm volatile("setmaxnreg.inc.sync.aligned.u32 24;");
        else asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    } else if (CASE == 1) {  // the consumers give back what they should take
        if (warp >= 4) asm volatile("setmaxnreg.dec.sync.aligned.u32 240;");
    } else if (CASE == 2) {  // one warp of four
        if (warp == 0) asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    } else if (CASE == 3) {  // nobody gives back
        if (warp >= 4) asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    } else if (CASE == 4) {  // one after the other: the second waits for the first
        if (warp < 4) asm volatile("setmaxnreg.dec.sync.aligned.u32 96;");
        __syncthreads();
        if (warp < 4) asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        else asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    }
    out[threadIdx.x] = 1;
}
template __global__ void changes<0>(int*);
template __global__ void changes<1>(int*);
template __global__ void changes<2>(int*);
template __global__ void changes<3>(int*);
template __global__ void changes<4>(int*);
"""


def test_setmaxnreg_is_executed_by_whole_warpgroups(client: Client, tmp_path: Path) -> None:
    source = tmp_path / "changes.cu"
    source.write_text(BY_CASE)
    entries = [f"changes<{case}>" for case in range(5)]
    library = build_kernels(source, entries, (), check=False)
    expected = (
        (ErrorKind.BAD_SETMAXNREG, "setmaxnreg_inc_takes", ("24 registers", "384 threads")),
        (ErrorKind.BAD_SETMAXNREG, "setmaxnreg_dec_gives", ("240 registers", "384 threads")),
        (ErrorKind.DEADLOCK, "setmaxnreg_by_all_warps", ("32 of 128 threads",)),
        (ErrorKind.REGISTERS_NEVER_FREE, "waits_for_registers", ("72 registers", "128 threads")),
        (None, "", ()),
    )
    for entry, (kind, name, facts) in zip(entries, expected, strict=True):
        for schedule in ("in_order", "random", "reverse"):
            launch = KernelLaunch(entry, (2, 1, 1), (384, 1, 1), (TensorArg("out"),))
            out = Buffer("out", size_bytes=4 * 384, returned=True)
            result = client.run(Job(library, (out,), (launch,), schedule=schedule), 30.0)
            assert result.kind is kind, (entry, result.reason)
            parts = f"{result.reason[:-1]};"  # the last part ends with a full stop
            assert kind is None or says(parts, name, *facts)
