"""What a load is made of, without a server: arrival processes, workloads, traces, and who sends what."""

import itertools
import json
import statistics
from pathlib import Path

import msgspec
import pytest

from baton.bench.arrivals import arrival_times_s
from baton.bench.load.options import LoadOptions, check_load
from baton.bench.load.plan import open_loop
from baton.bench.workloads.options import WorkloadOptions, make_workload
from baton.bench.workloads.traces import Scale
from baton.errors import BatonError

LINES = [
    {"timestamp": 500, "input_length": 1000, "output_length": 5, "hash_ids": [0, 7]},
    {"timestamp": 1500, "input_length": 1400, "output_length": 6, "hash_ids": [0, 7, 9]},
    {"timestamp": 2500, "input_length": 600, "output_length": 7, "hash_ids": [0, 8]},
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


def gaps(process: str, rate: float, burstiness: float = 1.0) -> list[float]:
    times = list(itertools.islice(arrival_times_s(process, rate, burstiness, 0), 20_000))
    return [after - before for before, after in itertools.pairwise(times)]


@pytest.mark.parametrize(
    ("process", "burstiness", "variation"),
    [("poisson", 1.0, 1.0), ("gamma", 0.25, 2.0), ("gamma", 4.0, 0.5), ("fixed", 1.0, 0.0)],
)
def test_gaps_have_the_rate_and_the_coefficient_of_variation_of_their_process(
    process: str, burstiness: float, variation: float
) -> None:
    found = gaps(process, 50.0, burstiness)
    assert statistics.mean(found) == pytest.approx(0.02, rel=0.05)
    assert statistics.pstdev(found) / statistics.mean(found) == pytest.approx(variation, rel=0.05, abs=1e-6)


def test_processes_share_one_load_however_many_they_are() -> None:
    options = LoadOptions("grpc://h:1", "m", WorkloadOptions(), "gamma", 20.0, 0.5, num_sessions=50)
    workload = make_workload(options.workload)
    alone = list(open_loop(options, workload, 0))
    three = msgspec.structs.replace(options, num_processes=3)
    shared = [pair for process in range(3) for pair in open_loop(three, workload, process)]
    assert [number for number, _ in alone] == list(range(50))
    assert sorted(shared) == alone


def test_a_duration_ends_the_arrivals() -> None:
    options = LoadOptions("grpc://h:1", "m", WorkloadOptions(), "fixed", 10.0, duration_s=2.0)
    assert [at_s for _, at_s in open_loop(options, make_workload(options.workload), 0)][-1] == pytest.approx(2.0)


def test_a_session_is_the_same_in_every_process_and_for_another_seed_another() -> None:
    options = WorkloadOptions(input_tokens=100, length_spread=0.5)
    first, again = make_workload(options), make_workload(options)
    assert [again.session(number) for number in (3, 1)] == [first.session(3), first.session(1)]
    other = make_workload(msgspec.structs.replace(options, seed=1))
    assert other.session(3) != first.session(3)
    lengths = {len(first.session(number).turns[0].new_tokens) for number in range(200)}
    assert min(lengths) >= 50
    assert max(lengths) <= 150
    assert len(lengths) > 50


def test_shared_prefixes_are_few_and_what_follows_is_not_shared() -> None:
    workload = make_workload(WorkloadOptions("shared-prefix", input_tokens=8, prefix_tokens=32, num_prefixes=3))
    prompts = [workload.session(number).turns[0].new_tokens for number in range(60)]
    assert len({tuple(prompt[:32]) for prompt in prompts}) == 3
    assert len({tuple(prompt[32:]) for prompt in prompts}) == 60


def test_conversations_share_the_system_prompt() -> None:
    workload = make_workload(WorkloadOptions("multi-turn", input_tokens=8, prefix_tokens=32, num_turns=3, think_s=0.5))
    one, two = workload.session(0), workload.session(1)
    assert [len(turn.new_tokens) for turn in one.turns] == [40, 8, 8]
    assert one.turns[0].new_tokens[:32] == two.turns[0].new_tokens[:32]
    assert one.turns[0].new_tokens[32:] != two.turns[0].new_tokens[32:]
    assert one.think_s == 0.5


def test_each_long_document_is_asked_about_so_many_times() -> None:
    workload = make_workload(WorkloadOptions("long-document", input_tokens=8, document_tokens=64, num_questions=3))
    documents = [tuple(workload.session(number).turns[0].new_tokens[:64]) for number in range(24)]
    assert sorted(documents.count(document) for document in set(documents)) == [3] * 8


def test_the_same_hash_id_stands_for_the_same_512_tokens(trace: Path) -> None:
    workload = make_workload(WorkloadOptions("trace", trace=str(trace)))
    one, two, three = (workload.session(number).turns[0].new_tokens for number in range(3))
    assert [len(prompt) for prompt in (one, two, three)] == [1000, 1400, 600]
    assert one == two[:1000]  # the second block of the first is cut off, but the same
    assert one[:512] == three[:512]
    assert one[512:600] != three[512:]
    assert [workload.session_arrival_s(number) for number in range(3)] == [0.0, 1.0, 2.0]
    assert [workload.session(number).turns[0].output_tokens for number in range(3)] == [5, 6, 7]


def test_a_trace_is_scaled_and_too_long_requests_are_left_out(trace: Path) -> None:
    scale = Scale(speed=2.0, lengths=0.1, longest=120)
    workload = make_workload(WorkloadOptions("trace", trace=str(trace), scale=scale))
    assert workload.num_sessions == 2
    assert [workload.session_arrival_s(number) for number in range(2)] == [0.0, 1.0]
    assert [len(workload.session(number).turns[0].new_tokens) for number in range(2)] == [100, 60]
    assert workload.session(0).turns[0].new_tokens[:51] == workload.session(1).turns[0].new_tokens[:51]
    assert workload.notes[0].startswith("1 of 3 requests of the trace are left out")


def test_a_csv_has_arrivals_and_lengths(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n2.5,30,4\n1.0,20,3\n")
    workload = make_workload(WorkloadOptions("trace", trace=str(path)))
    sessions = [workload.session(number).turns[0] for number in range(2)]
    assert [(len(turn.new_tokens), turn.output_tokens) for turn in sessions] == [(20, 3), (30, 4)]
    assert [workload.session_arrival_s(number) for number in range(2)] == [0.0, 1.5]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("t.jsonl", json.dumps(LINES[0]) + '\n{"timestamp": 5}\n', "line 2: got"),
        ("t.jsonl", json.dumps(LINES[0] | {"output_length": 0}), "line 1: got"),
        (
            "t.jsonl",
            "\n" + json.dumps(LINES[0] | {"hash_ids": [1, 2, 3]}),
            "3 hash ids for 1000",
        ),
        ("t.jsonl", "", "got no request"),
        ("t.csv", "time,in,out\n1,2,3\n", "line 1: got time,in,out, expected arrival_s,input_tokens,output_tokens"),
        ("t.csv", "arrival_s,input_tokens,output_tokens\n1,2,3\n1,two,3\n", "line 3: got 1,two,3"),
        ("t.csv", "arrival_s,input_tokens,output_tokens\n-1,2,3\n", "line 2: got -1,2,3"),
        ("t.csv", "arrival_s,input_tokens,output_tokens\n1,2\n", "line 2: got 1,2"),
    ],
)
def test_a_malformed_trace_is_refused_with_the_lines_number(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BatonError, match="--trace") as caught:
        make_workload(WorkloadOptions("trace", trace=str(tmp_path / name)))
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("workload", "load", "flag"),
    [
        ({"kind": "chat"}, {}, "--workload chat"),
        ({"kind": "trace"}, {}, "--trace"),
        ({"kind": "trace", "trace": "/nowhere/t.jsonl"}, {}, "cannot be read"),
        ({"input_tokens": 0}, {}, "--input-tokens 0"),
        ({"length_spread": 1.5}, {}, "--length-spread 1.5"),
        ({"vocab_size": 100}, {}, "--vocab-size 100"),
        ({}, {"num_sessions": None}, "neither --requests nor --duration-s"),
        ({}, {"arrivals": "uniform"}, "--arrivals uniform"),
        ({}, {"arrivals": "trace"}, "--arrivals trace"),
        ({}, {"duration_s": -1.0}, "--duration-s -1"),
        ({}, {"arrivals": "closed", "concurrency": 1, "num_processes": 2}, "--concurrency 1"),
        ({}, {"rate": 0.0}, "--rate 0"),
        ({}, {"arrivals": "gamma", "burstiness": -1.0}, "--burstiness -1"),
    ],
)
def test_options_that_make_no_load_are_refused_by_their_flag(
    workload: dict[str, object], load: dict[str, object], flag: str
) -> None:
    options = LoadOptions("grpc://h:1", "m", WorkloadOptions(**workload), **{"num_sessions": 5} | load)  # type: ignore[arg-type]

    def make() -> None:
        check_load(options)
        list(open_loop(options, make_workload(options.workload), 0))

    with pytest.raises(BatonError) as caught:
        make()
    assert flag in caught.value.message
