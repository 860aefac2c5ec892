"""Binary sizes: what a vendor calls 24 GB of device memory is 24 GiB."""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
