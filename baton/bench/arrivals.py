"""When requests are to be sent: open-loop arrival processes, all made from a seed."""

import itertools
from collections.abc import Iterator

import numpy as np

from baton.errors import invalid

_CHUNK = 1024


def arrival_times_s(process: str, rate: float, burstiness: float, seed: int) -> Iterator[float]:
    """Endless times since the start, in seconds, `rate` a second on average.

    `process` is "poisson", "gamma" (gaps of shape `burstiness`: 1 is Poisson, below 1 comes in bursts, above 1 is more
    regular than Poisson; as vLLM's benchmark has it) or "fixed" (equal gaps, the first request at 0).

    Raises:
        BatonError: INVALID_ARGUMENT for another process, or for a rate or a burstiness that is not above 0.
    """
    if not rate > 0:
        raise invalid(f"got --rate {rate:g}, expected requests a second above 0")
    if not burstiness > 0:
        raise invalid(f"got --burstiness {burstiness:g}, expected a number above 0; 1 is Poisson, below 1 is bursty")
    if process == "fixed":
        return (number / rate for number in itertools.count())
    if process == "poisson":
        return _gamma_times(rate, 1.0, seed)
    if process == "gamma":
        return _gamma_times(rate, burstiness, seed)
    raise invalid(f"got --arrivals {process}, expected poisson, gamma or fixed")


def _gamma_times(rate: float, shape: float, seed: int) -> Iterator[float]:
    generator = np.random.default_rng([seed, 1])
    now = 0.0
    while True:
        for gap in generator.gamma(shape, 1 / (rate * shape), _CHUNK):
            now += float(gap)
            yield now
