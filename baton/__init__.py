"""Baton's base: types, errors, configuration, protocol stubs, telemetry, command line. Imports no torch."""

__version__ = "0.1.0"
