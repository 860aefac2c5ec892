"""Kernels rewritten from those of published series, with the same launches.

The sources of the series are not in this repository: simulated times of their machine code are in
`tests/bench/counted_sets.json` and do not change with the model. These kernels are simulated with
the present model, so that a change that makes those figures out of date is found.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from engine.cuda_source import compile_kernel
from engine.devices import find_device
from engine.devices.spec import DeviceSpec
from engine.history.simulation import time_launch
from engine.machine_code.analysis import Analysis, analyse
from engine.machine_code.launch import Launch, parse_arguments
from engine.pipeline.simulated_launches import device_at

KERNELS = Path(__file__).parent / "kernels"
FP16, BF16, INT8 = range(3)
REGISTERS, CP_ASYNC, TMA = range(3)
PLAIN, PADDED, SWIZZLED = range(3)
TWO_AXES = -1


def gpu(name: str) -> DeviceSpec:
    """Return a GPU of the table, or one that only the series have."""
    match name:
        case "RTX 4070 Ti SUPER":
            near = find_device("RTX 4080")
            figures = {"num_sms": 66, "boost_clock_mhz": 2610, "l2_bytes": 48 << 20, "power_w": 285}
            return replace(near, name=name, memory_gb_per_s=672.0, **figures)
        case "RTX 5090 at 400 W":
            return replace(find_device("RTX 5090"), power_w=400)
        case "RTX PRO 6000 Max-Q":
            near = find_device("RTX PRO 6000 Blackwell")
            return replace(near, power_w=300, boost_clock_mhz=2300)
    return find_device(name)


@dataclass(frozen=True)
class Rewritten:
    """One kernel and its launch."""

    series: str  # of counted_sets.json
    name: str  # of the point there
    gpu: str
    clock: str  # "boost", "sustained" or MHz
    file: str
    entry: str
    defines: tuple[tuple[str, str], ...]
    grid: tuple[int, int, int]
    threads: int
    smem_bytes: int
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.series}, {self.name}"

    def analysis(self) -> Analysis:
        """Counted."""
        arch = gpu(self.gpu).arch.replace("120", "120a").replace("90", "90a")
        cubin = compile_kernel(KERNELS / self.file, self.defines, arch, (self.entry,)).cubin
        return analyse(cubin, self.entry, self.launch())

    def launch(self) -> Launch:
        """Return the launch of the series."""
        arguments = parse_arguments(list(self.arguments))
        return Launch(self.grid, (self.threads, 1, 1), self.smem_bytes, arguments)

    def simulated_us(self) -> float:
        """Return the simulated median of the launch at the series' clock."""
        analysis, device = self.analysis(), gpu(self.gpu)
        at = device_at(device, self.clock, [analysis], lambda: [time_launch(analysis, device)])
        return time_launch(analysis, at).simulated.latency.median_us


def gemm(
    series: str,
    name: str,
    gpu: str,
    clock: str,
    *,
    size: int = 4096,
    block: tuple[int, int, int] = (128, 128, 64),
    warps: tuple[int, int] = (2, 2),
    element: int = BF16,
    copy: int = CP_ASYNC,
    layout: int = SWIZZLED,
    stages: int = 1,
    group: int = 0,
) -> Rewritten:
    """Return a kernel of `gemm_mma.cu`; `block` is rows, columns and depth of a CTA's tile."""
    rows, columns, depth = block
    names = ("ELEMENT", "COPY", "LAYOUT", "STAGES", "GROUP", "BLOCK_M", "BLOCK_N", "BLOCK_K")
    values = (element, copy, layout, stages, group, *block)
    defines = dict(zip(names, map(str, values), strict=True))
    defines |= {"WARPS_M": str(warps[0]), "WARPS_N": str(warps[1])}
    defines["NARROW"] = str(int(element == BF16))
    kind = ("f16", "bf16", "u8")[element]
    row_bytes = depth * (1 if element == INT8 else 2)
    operands = [
        f"tensormap:{kind}[{size},{size}]box[{depth},{extent}]swizzle128" if copy == TMA else "ptr"
        for extent in (rows, columns)
    ]
    across, down = size // columns, size // rows
    return Rewritten(
        series,
        name,
        gpu,
        clock,
        "gemm_mma.cu",
        "gemm",
        tuple(sorted(defines.items())),
        (across, down, 1) if group == TWO_AXES else (across * down, 1, 1),
        32 * warps[0] * warps[1],
        stages * (rows + columns) * (row_bytes + 16 * (layout == PADDED)),
        (*operands, "ptr", f"i32:{size}"),
    )


def stream(
    series: str,
    name: str,
    gpu: str,
    entry: str,
    grid: tuple[int, int, int],
    threads: int,
    *arguments: str,
) -> Rewritten:
    """Return a kernel of `streams.cu`, at the boost clock."""
    return Rewritten(
        series, name, gpu, "boost", "streams.cu", entry, (), grid, threads, 0, arguments
    )


_A100 = ("learn-cuda 02b A100", "A100 40GB SXM")
_RTX_5090 = "RTX 5090 at 400 W"
_MAP = "tensormap:f32[32768,32768]box[32,32]"
REWRITTEN = (
    gemm(_A100[0], "v1 4096", _A100[1], "sustained", copy=REGISTERS, layout=PLAIN),
    gemm(_A100[0], "v4 4096", _A100[1], "sustained"),
    gemm(_A100[0], "v6 4096", _A100[1], "sustained", stages=2),
    gemm(_A100[0], "v6b 4096", _A100[1], "sustained", stages=2, group=8),
    gemm("learn-cuda 02b RTX 5090", "v6 4096", _RTX_5090, "sustained", stages=2),
    gemm(
        *("learn-cuda 02c RTX 5090", "v1 4096", _RTX_5090, "sustained"),
        block=(256, 128, 64),
        warps=(4, 2),
        copy=TMA,
        stages=2,
    ),
    gemm(
        *("learn-cuda 02c INT8 RTX 5090", "v1 4096", _RTX_5090, "sustained"),
        block=(256, 128, 128),
        warps=(4, 2),
        element=INT8,
        copy=TMA,
        stages=2,
    ),
    gemm(
        *("spatters RTX 4090", "kernel 3.1", "RTX 4090", "2520"),
        block=(128, 128, 32),
        warps=(2, 4),
        element=FP16,
        stages=3,
        group=TWO_AXES,
    ),
    gemm(
        *("matmul-playground T4", "kernel 4", "T4", "1590"),
        size=8192,
        block=(256, 128, 64),
        warps=(4, 2),
        element=FP16,
        copy=REGISTERS,
        group=TWO_AXES,
    ),
    gemm(
        *("blackwell-tensorcore RTX PRO 6000", "mma_pipe 4096", "RTX PRO 6000 Max-Q", "sustained"),
        block=(128, 128, 32),
        warps=(4, 4),
        element=FP16,
        stages=2,
        group=TWO_AXES,
    ),
    *(
        stream(series, name, "H100 SXM", "sum", (16384, 1, 1), 1024, "ptr", "ptr")
        for series, name in (
            ("fast.cu sum H100", "sum 4 GiB"),
            ("simveit reduction H100", "kernel 8"),
        )
    ),
    stream(
        *("simveit scan H100", "kernel 1", "H100 SXM", "scan", (1 << 21, 1, 1), 512),
        *("ptr", "ptr"),
    ),
    stream(
        *("learn-cuda 04 4070 Ti SUPER", "naive", "RTX 4070 Ti SUPER", "softmax", (8192, 1, 1)),
        *(1024, "ptr", "ptr", "i32:8192"),
    ),
    stream(
        *("simveit transpose H100", "naive", "H100 SXM", "transpose", (1024, 1024, 1), 1024),
        *(_MAP, _MAP),
    ),
)
