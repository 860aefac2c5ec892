"""Sessions and their snapshots: working session, store, import, compare, report, rerun."""
