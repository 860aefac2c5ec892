"""Modules that all others use: errors, files, journals, schema, tables, units."""
