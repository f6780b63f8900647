"""docs/sampling.md tells of every sampling field, and the tests that it names are there."""

import ast
import re
from pathlib import Path

from baton.rpc import sampling_pb2

ROOT = Path(__file__).parents[2]


def table() -> dict[str, str]:
    """The table's rows by field."""
    text = (ROOT / "docs/sampling.md").read_text()
    return {match[1]: match[0] for match in re.finditer(r"^\| `(\w+)`.*$", text, re.MULTILINE)}


def test_every_field_is_in_the_table_with_a_test() -> None:
    rows = table()
    assert set(rows) == {*sampling_pb2.SamplingParams.DESCRIPTOR.fields_by_name, "echo"}
    assert [field for field, row in rows.items() if "::test_" not in row] == []


def test_the_tests_in_the_table_exist() -> None:
    named = set(re.findall(r"`(\w+/test_\w+\.py)::(\w+)`", "".join(table().values())))
    assert len(named) > 25
    for file, name in named:
        tree = ast.parse((ROOT / "tests" / file).read_text())
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert name in functions, f"{file} has no {name}"
