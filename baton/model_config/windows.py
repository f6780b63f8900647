"""Which layers attend to a sliding window, and how long it is."""

from typing import Any

FULL, SLIDING = "full_attention", "sliding_attention"


def read_windows(config: dict[str, Any]) -> tuple[int | None, ...]:
    """For each layer how many tokens it attends to, a token itself included; None for all of them.

    Where config.json has no `layer_types`, they follow the older fields:
    `sliding_window_pattern` n (every n-th layer is full), `max_window_layers` n (the first n layers are full), or else
    every layer has the window.
    """
    layers: int = config["num_hidden_layers"]
    window = config.get("sliding_window")
    if window is None or not config.get("use_sliding_window", True):
        return (None,) * layers
    types = config.get("layer_types")
    if types:
        return tuple(window if kind == SLIDING else None for kind in types)
    if pattern := config.get("sliding_window_pattern"):
        return tuple(window if (index + 1) % pattern else None for index in range(layers))
    first = config.get("max_window_layers") or 0
    return tuple(window if index >= first else None for index in range(layers))
