"""Model code: one file an architecture family, found by name in the registry."""
