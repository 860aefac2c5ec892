"""The table of GPUs: the only list.

Conventions of every row: tensor peaks are dense (no sparsity) with FP32 accumulation, which on
GeForce cards is half the advertised figure; the clock is the boost clock; memory is what the vendor
calls GB, counted in GiB as drivers do; prices are list prices of one GPU-hour at the time named,
meant to be edited where they are used. A figure that no source gives is None.
"""

from __future__ import annotations

from engine.devices import rows_ada_hopper, rows_blackwell, rows_turing_ampere
from engine.devices.spec import DeviceSpec

DEVICES: tuple[DeviceSpec, ...] = (
    *rows_turing_ampere.ROWS,
    *rows_ada_hopper.ROWS,
    *rows_blackwell.ROWS,
)
