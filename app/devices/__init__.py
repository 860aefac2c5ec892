"""The table of the page "Devices"."""
