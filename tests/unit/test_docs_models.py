"""docs/models.md tells of every architecture that has code here, and the cases that it names are tested."""

import re
from pathlib import Path

from engine.models.registry import NATIVE_MODELS
from tests.fakes.tiny_models import CASES

ROWS = re.findall(r"^\| `(\w+)`.*\| (.*) \|$", (Path(__file__).parents[2] / "docs/models.md").read_text(), re.MULTILINE)


def test_every_architecture_has_a_line() -> None:
    assert [name for name, _ in ROWS] == list(NATIVE_MODELS)


def test_every_case_is_named_once() -> None:
    assert sorted(re.findall(r"`([\w-]+)`", "".join(cases for _, cases in ROWS))) == sorted(CASES)
