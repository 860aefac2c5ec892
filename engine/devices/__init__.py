"""GPU models, SM limits, and the GPU of this machine."""

from engine.devices.spec import DeviceSpec, SmLimits, limits_for
from engine.devices.table import all_devices, find_device

__all__ = ["DeviceSpec", "SmLimits", "all_devices", "find_device", "limits_for"]
