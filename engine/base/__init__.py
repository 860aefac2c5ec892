"""What the rest stands on: errors, files, journals, text, units, tables."""
