"""Two measured loads beside each other: each figure's ratio with its interval, and what can be said of it."""

import enum
from collections.abc import Callable, Sequence

import msgspec

from baton.bench.bootstrap import Mean, Percentile, Ratio, ratio_interval
from baton.bench.load.lag import bottleneck
from baton.bench.result_lines import load_params
from baton.bench.rows import UNFINISHED, RequestRow
from baton.bench.run_folder import Run
from baton.bench.windows import Windows

_MOST_WINDOWS = 200
_FEW_WINDOWS = 10


class Verdict(enum.StrEnum):
    """Of B beside A."""

    BETTER = "better"
    WORSE = "worse"
    OPEN = "no difference shown"


class Finding(msgspec.Struct, frozen=True):
    """One figure of both."""

    name: str
    unit: str
    ratio: Ratio
    higher_is_better: bool

    @property
    def verdict(self) -> Verdict:
        """Open unless the whole interval lies on one side of 1."""
        if self.ratio.low <= 1 <= self.ratio.high:
            return Verdict.OPEN
        return Verdict.BETTER if (self.ratio.low > 1) == self.higher_is_better else Verdict.WORSE


class Comparison(msgspec.Struct, frozen=True):
    """What `compare` found."""

    findings: list[Finding]
    warnings: list[str]  # why the figures may not mean what they seem to

    @property
    def verdict(self) -> str:
        """In one sentence a verdict."""
        parts = []
        for verdict, words in ((Verdict.BETTER, "B is better in"), (Verdict.WORSE, "B is worse in")):
            those = [finding for finding in self.findings if finding.verdict is verdict]
            names = [f"{finding.name} ({finding.ratio.value - 1:+.1%})" for finding in those]
            if names:
                parts.append(f"{words} {', '.join(names)}.")
        still = [finding.name for finding in self.findings if finding.verdict is Verdict.OPEN]
        if still:
            parts.append(f"No difference is shown in {', '.join(still)}.")
        return " ".join(parts) or "There is no figure that both runs have."


def compare(a: Run, b: Run, resamplings: int, confidence: float, seed: int) -> Comparison:
    """Latencies resample sessions, rates resample windows of time."""
    findings = []
    sides = [_complete(run) for run in (a, b)]
    for name, share, values in _LATENCIES:
        first, second = (Percentile(_by_session(rows, values), share) for rows in sides)
        if ratio := ratio_interval(first, second, resamplings, confidence, seed):
            findings.append(Finding(name, "ms", ratio, higher_is_better=False))
    windows = [Windows(run.rows, _MOST_WINDOWS) for run in (a, b)]
    rates = [("output", "tok/s", [window.tokens_s(rows) for window, rows in zip(windows, sides, strict=True)])]
    if (slo := a.info.slo) is not None and slo == b.info.slo:
        good = [window.ends_s(rows, slo.met) for window, rows in zip(windows, sides, strict=True)]
        rates.append(("goodput", "req/s", good))
    for name, unit, (one, other) in rates:
        if ratio := ratio_interval(Mean(one), Mean(other), resamplings, confidence, seed):
            findings.append(Finding(name, unit, ratio, higher_is_better=True))
    return Comparison(findings, _warnings(a, b, windows))


Values = Callable[[RequestRow], Sequence[float]]
_LATENCIES: list[tuple[str, float, Values]] = [
    ("TTFT p50", 0.5, lambda row: [row.ttft_ms]),
    ("TTFT p99", 0.99, lambda row: [row.ttft_ms]),
    ("TPOT p50", 0.5, lambda row: [row.tpot_ms] if row.output_tokens > 1 else []),
    ("ITL p50", 0.5, lambda row: row.gaps_ms),
    ("ITL p99", 0.99, lambda row: row.gaps_ms),
    ("worst gap p50", 0.5, lambda row: [row.max_gap_ms] if len(row.arrivals_ms) > 1 else []),
    ("worst gap p99", 0.99, lambda row: [row.max_gap_ms] if len(row.arrivals_ms) > 1 else []),
    ("end to end p50", 0.5, lambda row: [row.e2e_ms]),
]


def _complete(run: Run) -> list[RequestRow]:
    return [row for row in run.rows if row.error is None]


def _by_session(rows: Sequence[RequestRow], values: Values) -> list[list[float]]:
    groups: dict[int, list[float]] = {}
    for row in rows:
        groups.setdefault(row.session, []).extend(values(row))
    return list(groups.values())


def _warnings(a: Run, b: Run, windows: Sequence[Windows]) -> list[str]:
    found = []
    one, other = load_params(a.info.options), load_params(b.info.options)
    differences = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    if differences:
        told = ", ".join(f"{name} {one.get(name)} and {other.get(name)}" for name in differences)
        found.append(f"The loads differ: {told}.")
    if not differences and a.info.options.seed != b.info.options.seed:
        found.append("The requests came at other times in B: the runs have different --seed.")
    if a.info.machine != b.info.machine:
        found.append(f"The clients ran on different machines: {a.info.machine}; {b.info.machine}.")
    for name, run in (("A", a), ("B", b)):
        if bottleneck(run.info.lags):
            found.append(f"In {name} the client was the bottleneck.")
        if run.info.interrupted:
            found.append(f"{name} was interrupted.")
        failed = sum(row.error is not None and row.error not in UNFINISHED for row in run.rows)
        if failed:
            found.append(f"{failed} of {len(run.rows)} requests of {name} failed; latencies are of the others.")
    if min(window.count for window in windows) < _FEW_WINDOWS:
        found.append("A run is short: the intervals of rates are of few seconds and too narrow.")
    return found
