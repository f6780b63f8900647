"""Least squares with factors that are not negative, for a few features."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from baton.errors import BatonError, ErrorCode


class Fitted(NamedTuple):
    """One factor a feature, and how far off they are."""

    factors: list[float]
    mean_error: float  # of the absolute relative errors


def fit(features: Sequence[Sequence[float]], values: Sequence[float]) -> Fitted:
    """Factors that give `values` with the least relative errors; all subsets of the features are tried.

    Raises:
        BatonError: FAILED_PRECONDITION without values, or with one that is not above 0.
    """
    if not values or min(values) <= 0:
        raise BatonError(
            ErrorCode.FAILED_PRECONDITION,
            f"got {len(values)} durations to fit, the least {min(values, default=0):g} s, expected some above 0; "
            "record a longer load",
        )
    measured = np.asarray(values, dtype=float)
    weighted = np.asarray(features, dtype=float) / measured[:, None]
    num_features = weighted.shape[1]
    best: tuple[float, list[float]] = (np.inf, [0.0] * num_features)
    ones = np.ones(len(measured))
    for count in range(1, num_features + 1):
        for chosen in itertools.combinations(range(num_features), count):
            part = weighted[:, chosen]
            scale = np.maximum(np.abs(part).max(axis=0), 1e-300)
            found = np.linalg.lstsq(part / scale, ones, rcond=None)[0] / scale
            if (found < 0).any():
                continue
            error = float(((part @ found - ones) ** 2).sum())
            if error < best[0] - 1e-12:
                factors = [0.0] * num_features
                for place, factor in zip(chosen, found, strict=True):
                    factors[place] = float(factor)
                best = (error, factors)
    return Fitted(best[1], float(np.abs(weighted @ np.asarray(best[1]) - ones).mean()))
