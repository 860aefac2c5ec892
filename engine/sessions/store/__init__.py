"""Where snapshots are kept and listed: local folders and fsspec file systems."""
