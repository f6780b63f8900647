"""Costs of machines, each made by the command that its `source` names."""
