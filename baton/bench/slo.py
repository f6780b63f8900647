"""Service level objectives of one request: read from text, met or not, and how near a miss was."""

import math
import re
from collections.abc import Sequence

import msgspec

from baton.bench.rows import RequestRow
from baton.errors import invalid

OBJECTIVES = {
    "ttft": "time to first token",
    "tpot": "mean time of an output token after the first",
    "itl": "99th percentile of the request's own gaps between tokens",
    "gap": "longest gap between tokens",
    "e2e": "time to the end of the answer",
}
_LIMIT = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s)", re.ASCII)
_UNIT_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


class Slo(msgspec.Struct, frozen=True):
    """What each request is to keep; `limits_ms` by the names of `OBJECTIVES`."""

    limits_ms: dict[str, float]

    def __str__(self) -> str:
        return ",".join(f"{name}={limit:g}ms" for name, limit in self.limits_ms.items())

    def excess(self, row: RequestRow) -> float:
        """The largest ratio of a value to its limit; at most 1 when all are kept, infinite for a failed request."""
        if row.error is not None:
            return math.inf
        return max(measured_ms(row, name) / limit for name, limit in self.limits_ms.items())

    def met(self, row: RequestRow) -> bool:
        """Whether the request ended well and within all limits."""
        return self.excess(row) <= 1


def parse_slo(text: str) -> Slo:
    """Reads "ttft=500ms,itl=40ms,gap=200ms,e2e=5s".

    Raises:
        BatonError: INVALID_ARGUMENT for an unknown objective, one given twice, or a limit that is no time above 0.
    """
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        match = _LIMIT.fullmatch(value)
        if name not in OBJECTIVES or not match:
            expected = f"NAME=TIME with a name of {', '.join(OBJECTIVES)} and a time such as 500ms, 40ms or 5s"
            raise invalid(f"--slo: got {part.strip()!r}, expected {expected}")
        if name in limits:
            raise invalid(f"--slo: got {name} twice, expected each objective once")
        limits[name] = float(match[1]) * _UNIT_MS[match[2]]
        if not limits[name]:
            raise invalid(f"--slo: got {part.strip()!r}, expected a time above 0")
    return Slo(limits)


def measured_ms(row: RequestRow, objective: str) -> float:
    """A finished request's value for one of `OBJECTIVES`; 0 where there was nothing to wait for (no second token)."""
    value = {
        "ttft": lambda: row.ttft_ms,
        "tpot": lambda: row.tpot_ms,
        "itl": lambda: row.gap_percentile_ms(0.99),
        "gap": lambda: row.max_gap_ms,
        "e2e": lambda: row.e2e_ms,
    }[objective]()
    return 0.0 if math.isnan(value) else value


def closest_miss(slo: Slo, rows: Sequence[RequestRow]) -> str | None:
    """How close the best request came when none met the SLO; None when one did."""
    best = min(rows, key=slo.excess, default=None)
    if best is None or best.error is not None:
        return f"no request met the SLO {slo}: none ended well"
    if slo.met(best):
        return None
    parts = []
    for name, limit in slo.limits_ms.items():
        value = measured_ms(best, name)
        if value > limit:
            parts.append(f"{name} {value:.1f} ms of {limit:g} ms")
    return f"no request met the SLO {slo}; the best, {best.name}, came to {slo.excess(best):.2f}x: " + ", ".join(parts)
