"""The attention seam: what a backend does, its implementations, and which one an engine core takes."""
