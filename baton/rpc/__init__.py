"""Stubs generated from protos/ by `make protos`; not edited by hand."""
