"""Used by everything else: errors, files, journals, text, units, tables."""
