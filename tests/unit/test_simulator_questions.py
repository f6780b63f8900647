"""Questions to the simulator, each on a small cluster and a made-up trace; and what they say to bad input."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from baton.errors import BatonError
from simulator.agents import write_agents
from simulator.cli.app import app
from simulator.ideal import best_hit_share
from simulator.questions.base import trace_load


def invoke(*words: str) -> str:
    result = CliRunner().invoke(app, [*words], catch_exceptions=False, env={"COLUMNS": "200"})
    assert result.exit_code == 0
    return result.output


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "agents.jsonl"
    assert "requests to" in invoke("agents", "--out", str(path), "--sessions", "12", "--rate", "2")
    return path


def lines_of(out: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.with_suffix(".jsonl").read_text().splitlines()]


def test_agents_are_the_same_for_a_seed_and_grow_their_contexts(agents: Path, tmp_path: Path) -> None:
    again, other = tmp_path / "again", tmp_path / "other"
    write_agents(again, 12, 2, 0)
    write_agents(other, 12, 2, 1)
    assert again.read_text() == agents.read_text() != other.read_text()
    requests = [json.loads(line) for line in agents.read_text().splitlines()]
    assert [request["timestamp"] for request in requests] == sorted(request["timestamp"] for request in requests)
    assert all(len(request["hash_ids"]) == -(-request["input_length"] // 512) for request in requests)
    first = [request for request in requests if request["hash_ids"][:6] == requests[0]["hash_ids"][:6]]
    assert len(first) > 1  # later turns, or others of its kind


def test_the_most_that_a_cache_can_hit(agents: Path) -> None:
    load = trace_load(agents, 60)
    shares = [best_hit_share(load, 1, 128, blocks) for blocks in (0, 100, 1000, 100_000)]
    assert shares[0] == 0
    assert shares == sorted(shares)
    assert 0.5 < shares[-1] < 1


def test_routing_by_prefix_hits_more_and_never_more_than_the_most(agents: Path, tmp_path: Path) -> None:
    out = tmp_path / "routing"
    words = ("--trace", str(agents), "--workers", "8", "--load", "2", "--requests", "160", "--processes", "1")
    output = invoke("routing", *words, "--out", str(out))
    assert "round_robin" in output
    hits = {line["params"]["policy"]: line for line in lines_of(out) if line["metric"] == "sim_prefix_hit_share"}  # type: ignore[index]
    assert 0 < hits["round_robin"]["value"] < hits["prefix"]["value"] <= hits["prefix"]["floor"]  # type: ignore[operator]
    assert out.with_suffix(".svg").read_text().startswith("<svg")


def test_the_other_questions_answer(agents: Path, tmp_path: Path) -> None:
    few = ("--requests", "40", "--processes", "1")
    output = invoke(
        "ratio", "--trace", str(agents), "--workers", "4", "--loads", "4", *few, "--out", str(tmp_path / "r")
    )
    assert "Most goodput:" in output
    assert {line["metric"] for line in lines_of(tmp_path / "r")} >= {"sim_goodput_req_s", "sim_slo_share"}
    loss = ("--workers", "8", "--prefill", "4", "--share", "0.25", "--at-s", "5", "--loads", "2")
    assert "p99" in invoke("loss", "--trace", str(agents), *loss, *few)
    assert "aggregated" in invoke("aggregation", "--workers", "4", "--loads", "40", *few)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["ratio", "--workers", "1"], "got --workers 1"),
        (["ratio", "--loads", "4,x"], "got --loads 4,x"),
        (["routing", "--policies", "best"], "got 'best' in --policies best"),
        (["routing", "--load", "0"], "got --load 0"),
        (["loss", "--share", "1"], "got --share 1"),
        (["loss", "--prefill", "64"], "got --prefill 64 of --workers 64"),
        (["loss", "--processes", "0"], "got --processes 0"),
    ],
)
def test_what_makes_no_sense_is_told(words: list[str], told: str, agents: Path) -> None:
    with pytest.raises(BatonError, match=told):
        invoke(*words, "--trace", str(agents))
