"""Compose files as docker reads them, with every variable at its default."""

import re
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / "compose"
_VARIABLE = re.compile(r"\$\{(\w+)(?:(:?[-?])([^}]*))?\}")


def services(file: str, **variables: str) -> dict[str, dict[str, Any]]:
    """Those of one file; what it extends from another one is put in."""
    text = _VARIABLE.sub(lambda match: variables.get(match[1], match[3] or ""), (FOLDER / file).read_text())
    found: dict[str, dict[str, Any]] = yaml.safe_load(text)["services"]
    for name, service in found.items():
        if origin := service.pop("extends", None):
            found[name] = services(origin["file"], **variables)[origin["service"]] | service
    return found


def seconds(duration: str) -> float:
    """Of "40s" or "10m"."""
    return float(duration[:-1]) * {"s": 1, "m": 60}[duration[-1]]
