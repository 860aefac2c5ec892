"""The recorded sessions in `sessions/`, made by the importers from the measurements in `data/`.

`python tests/sessions/make_shipped.py` writes them; a test checks that the files are up to date.
"""

from __future__ import annotations

from pathlib import Path

from engine.sessions.folders import names_for
from engine.sessions.importers import ImportOptions, import_measurements
from engine.sessions.snapshot import Goal, Snapshot, dumps

DATA = Path(__file__).parent / "data"
SHIPPED = Path(__file__).resolve().parents[2] / "sessions"
WHEN = "2026-11-21T00:00:00Z"


def l4_study() -> Snapshot:
    """Return the FA-1 kernel on an L4: latency over S, and over batch × heads."""
    path = DATA / "l4_fa1_baseline.csv"
    options = ImportOptions(
        variant="v01",
        device="NVIDIA L4",
        config={"block_n": 64},
        title="L4 study: an FA-1 kernel at small and growing batch",
        hypothesis="A batch that fills the GPU takes about 41× less time per (batch, head) than "
        "B = H = 1 does, at S = 128.",
        target=Goal(metric="per_unit_gain", value=40, seqlen=128, head_dim=64),
        provenance="The kernel is one of the v01 design and not the file that stands here today; "
        "the day, driver, clocks and PyTorch version are not known.",
        environment={"gpus": [{"name": "NVIDIA L4", "compute_capability": "8.9"}]},
        when=WHEN,
        session_id="a77e0000000000000000000000000001",
    )
    return import_measurements(path.read_bytes(), name=path.name, options=options)


def h200_baselines() -> Snapshot:
    """Return PyTorch's attention on an H200, with every backend that supports the problem."""
    path = DATA / "h200_sdpa.json"
    options = ImportOptions(
        device="NVIDIA H200",
        title="H200: PyTorch SDPA, every backend",
        hypothesis="What a kernel has to beat.",
        notes="device_us is device time by CUDA graph replay, eager_us the time of one eager call "
        "of torch.nn.functional.scaled_dot_product_attention. The table names no dtype; the text "
        "that came with it says FP16.",
        provenance="Measured on an H200 with torch 2.11 and cuDNN 9.19; driver and clocks are not "
        "known.",
        environment={
            "gpus": [{"name": "NVIDIA H200", "compute_capability": "9.0"}],
            "torch": "2.11",
            "cudnn": "9.19",
        },
        when=WHEN,
        session_id="a77e0000000000000000000000000002",
    )
    return import_measurements(path.read_bytes(), name=path.name, options=options)


def shipped() -> dict[str, bytes]:
    """Return the content of each file by its name."""
    return {
        next(names_for(snapshot)).removesuffix(".gz"): dumps(snapshot, compress=False)
        for snapshot in (l4_study(), h200_baselines())
    }


if __name__ == "__main__":
    for name, content in shipped().items():
        (SHIPPED / name).write_bytes(content)
        print(SHIPPED / name)
