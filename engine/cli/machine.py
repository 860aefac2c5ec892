"""`devices`: the GPU table and this machine's GPU. `selfcheck`: what works on this machine."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass

from engine.base.table import Table
from engine.cli.output import print_figures, print_json, print_table
from engine.devices import all_devices, find_device
from engine.devices.environment import collect_environment
from engine.devices.spec import detect_local
from engine.pipeline.selfcheck import State, selfcheck


@dataclass(frozen=True)
class DevicesOptions:
    """The options of `devices`."""

    name: str | None
    json: bool


def run_devices(args: DevicesOptions) -> int:
    if args.name is not None:
        spec = find_device(args.name)
        if args.json:
            print_json(asdict(spec))
        else:
            figures = asdict(spec) | {
                "aliases": ", ".join(spec.aliases),
                "compute_capability": ".".join(map(str, spec.compute_capability)),
                "halves_fp32_sums": "yes" if spec.halves_fp32_sums else "no",
            }
            rows = figures.items()
            print_figures(spec.name, ((k, "unknown" if v is None else v) for k, v in rows))
        return 0
    local = detect_local()
    reason = local if isinstance(local, str) else ""
    if args.json:
        print_json(
            {
                "local": None if isinstance(local, str) else asdict(local),
                "local_reason": reason,
                "devices": [asdict(d) for d in all_devices()],
            }
        )
        return 0
    print(local if isinstance(local, str) else f"This machine: {local.spec.name}")
    for difference in () if isinstance(local, str) else local.differences:
        print(f"  {difference}")
    records = (
        {
            "GPU": d.name,
            "arch": d.arch,
            "SMs": d.num_sms,
            "FP16 TFLOP/s": d.fp16_tensor_tflops,
            "FP32 TFLOP/s": d.fp32_tflops,
            "GB/s": d.memory_gb_per_s,
            "memory": d.memory,
            "$/h": d.price_usd_per_hour,
            "price basis": d.price_basis,
        }
        for d in all_devices()
    )
    print_table(Table.of("Known GPUs (dense rates, FP32 accumulation)", records))
    return 0


_WIDTH = 100
_INDENT = 36


@dataclass(frozen=True)
class SelfcheckOptions:
    """The options of `selfcheck`."""

    gpu: str | None
    json: bool


def run_selfcheck(args: SelfcheckOptions) -> int:
    """Run the checks. Exit code 1 if a check failed; checks that do not apply here do not fail."""
    results = []
    for result in selfcheck(args.gpu):
        results.append(result)
        if not args.json:
            head = f"{result.name:<15} {result.state:<19} "
            print(
                textwrap.fill(
                    result.sentence,
                    _WIDTH,
                    initial_indent=head,
                    subsequent_indent=" " * _INDENT,
                    break_long_words=False,
                    break_on_hyphens=False,
                ),
                flush=True,
            )
    failed = [result.name for result in results if result.state is State.FAILED]
    if args.json:
        print_json(
            {
                "ok": not failed,
                "checks": [asdict(result) for result in results],
                "environment": collect_environment(),
            }
        )
    else:
        print(f"\nFailed: {', '.join(failed)}." if failed else "\nNothing failed.")
    return 1 if failed else 0
