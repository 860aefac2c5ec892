"""GPU models, SM limits, and the GPU of this machine."""

from engine.devices.limits import limits_for
from engine.devices.lookup import all_devices, find_device
from engine.devices.spec import DeviceSpec, SmLimits

__all__ = ["DeviceSpec", "SmLimits", "all_devices", "find_device", "limits_for"]
