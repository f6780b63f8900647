"""A sweep: rates times configurations. Each is a cell with a folder of its own, so that a sweep can be gone on with."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from baton.bench.run_folder import REPORT, Run, read_run
from baton.bench.summary import Summary, summarize
from baton.errors import invalid

PLAN = "sweep.json"


class Configuration(msgspec.Struct, frozen=True):
    """What is measured: a stack that is started for it, or an endpoint that runs already."""

    name: str
    text: str  # flags of `baton up`, or an endpoint's URL

    @property
    def is_endpoint(self) -> bool:
        """Whether `text` is a URL."""
        return "://" in self.text


class Plan(msgspec.Struct, frozen=True):
    """What all cells of a folder have in common."""

    arguments: list[str]  # of `baton bench serve`
    seed: int


class Cell(msgspec.Struct, frozen=True):
    """One load on one configuration."""

    configuration: str
    rate: float
    folder: Path

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.configuration} at {self.rate:g}"

    @property
    def run(self) -> Run | None:
        """What was measured; None when that is still to be done, or was interrupted."""
        if not (self.folder / REPORT).is_file():
            return None
        found = read_run(self.folder)
        return None if found.info.interrupted else found


class Outcome(msgspec.Struct, frozen=True):
    """A cell that is done."""

    cell: Cell
    summary: Summary
    notes: Sequence[str]


def parse_configuration(text: str) -> Configuration:
    """Reads NAME=FLAGS or NAME=URL; no flags are a stack as `baton up` makes it.

    Raises:
        BatonError: INVALID_ARGUMENT for a name that is missing or no name of a folder.
    """
    name, equals, rest = text.partition("=")
    if not equals or not name or not all(letter.isalnum() or letter in "-_." for letter in name) or name[0] == ".":
        raise invalid(
            f"--config: got {text!r}, expected NAME=FLAGS of `baton up` or NAME=URL with a name of letters, digits, "
            "- and _, as in apart='--prefill 1 --decode 1'"
        )
    return Configuration(name, rest.strip())


def parse_rates(text: str) -> list[float]:
    """Reads "0.5,1,2".

    Raises:
        BatonError: INVALID_ARGUMENT for what is no list of different rates above 0.
    """
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = []
    if not rates or not all(0 < rate < float("inf") for rate in rates) or len(set(rates)) < len(rates):
        raise invalid(f"--rates: got {text!r}, expected different requests a second, each above 0, as in 0.5,1,2")
    return rates


def keep_plan(folder: Path, plan: Plan) -> None:
    """Notes the plan in a new folder, or checks that an old one has the same: its cells are to be comparable.

    Raises:
        BatonError: INVALID_ARGUMENT when the folder's cells were measured otherwise.
    """
    file = folder / PLAN
    if file.is_file():
        known = msgspec.json.decode(file.read_bytes(), type=Plan)
        if known != plan:
            raise invalid(
                f"--out {folder} holds a sweep with --seed {known.seed} and {' '.join(known.arguments) or 'no flags'}, "
                f"got --seed {plan.seed} and {' '.join(plan.arguments) or 'none'}; name another folder, or use the same"
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.format(msgspec.json.encode(plan), indent=2))


def cells(folder: Path, configurations: Sequence[Configuration], rates: Sequence[float]) -> list[Cell]:
    """All cells, those of a configuration together.

    Raises:
        BatonError: INVALID_ARGUMENT for two configurations of one name.
    """
    names = [configuration.name for configuration in configurations]
    if len(set(names)) < len(names):
        raise invalid(f"--config: got the names {', '.join(names)}, expected each once")
    return [Cell(name, rate, folder / name / f"rate-{rate:g}") for name in names for rate in rates]


def cell_seed(plan: Plan, rate: float) -> int:
    """Of a cell's prompts: the same for all configurations, another one for each rate.

    With one seed for all, a rate would find the prompts of the rate before in the prefix cache.
    """
    return plan.seed + round(rate * 1000)


def outcomes(all_cells: Sequence[Cell]) -> list[Outcome]:
    """Of the cells that are done."""
    found = []
    for cell in all_cells:
        run = cell.run
        if run is not None:
            found.append(Outcome(cell, summarize(run.rows, run.info.slo), run.info.notes))
    return found
