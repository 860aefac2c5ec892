"""Resolve, preview, evaluate and benchmark requests."""
