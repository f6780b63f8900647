"""Triton kernels, each with the signature of its torch twin, or with the torch path it is tested against named."""
