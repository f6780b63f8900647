"""Questions that simulations answer, each a command of `baton simulate`."""
