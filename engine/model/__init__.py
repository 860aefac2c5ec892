"""What can be said without running: occupancy, latency, calibration; `batch` recommends a batch."""
