"""GPU models, SM limits, and the GPU of this machine."""

from engine.devices.spec import (
    DeviceSpec,
    SmLimits,
    all_devices,
    find_device,
    limits_for,
    target_gpu,
)

__all__ = ["DeviceSpec", "SmLimits", "all_devices", "find_device", "limits_for", "target_gpu"]
