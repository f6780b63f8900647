"""The product's own decisions on a virtual clock: what a cluster would do under a load."""
