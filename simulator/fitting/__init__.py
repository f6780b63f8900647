"""Costs from measurements."""
