"""The front: text, validation, routing and orchestration. Imports no torch."""
