"""The metrics of a real stack: what three processes tell adds up with what clients and spans saw."""

import time

import pytest

from baton.cli import main
from baton.local.stack import LocalStack
from baton.telemetry.metrics import all_metrics
from tests.e2e.client import ask_together, greedy, token_request
from tests.e2e.test_trace import spans_of, traced_request
from tests.fakes.promql import queries, selectors
from tests.fakes.scrapes import Scrape, scrape

PROCESSES = {"gateway", "prefill-0", "decode-0"}


def scrape_all(stack: LocalStack) -> dict[str, Scrape]:
    return {name: scrape(url) for name, url in stack.metrics_urls.items()}


def test_what_is_scraped_is_declared_and_within_bounds(apart: LocalStack) -> None:
    scrapes = scrape_all(apart)
    assert scrapes.keys() == PROCESSES
    declared, seen = all_metrics(), set()
    for found in scrapes.values():
        assert found.value("process_resident_memory_bytes") > 0
        ours = {sample.name for sample in found.samples if sample.name.startswith("baton_")}
        for sample in found.samples:
            if sample.name not in ours:
                continue
            name = sample.name
            if name not in declared:
                name = name.rpartition("_")[0]  # of a histogram, or the creation time of a counter
                if sample.name.endswith("_created"):
                    continue
            seen.add(name)
            for label in declared[name].labels:
                assert not label.values or sample.labels[label.name] in label.values, sample
            assert sample.labels.keys() - {"le"} == {label.name for label in declared[name].labels}
    assert seen == declared.keys()


def test_every_query_of_dashboards_and_alerts_finds_its_series(apart: LocalStack) -> None:
    traced_request(apart, 50)
    series = [(s.name, s.labels) for found in scrape_all(apart).values() for s in found.samples]
    for place, expr in queries().items():
        for selector in selectors(expr):
            assert any(selector.matches(*each) for each in series), f"{place}: nothing matches {selector}"


def test_top_shows_every_process_of_a_stack(apart: LocalStack, capsys: pytest.CaptureFixture[str]) -> None:
    urls = [part for url in apart.metrics_urls.values() for part in ("--url", url)]
    with pytest.raises(SystemExit) as caught:
        main(["top", "--once", "--interval-s", "0.1", *urls])
    assert caught.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    num_blocks = int(scrape(apart.metrics_urls["decode-0"]).value("baton_worker_kv_pool_blocks"))
    for name, role in (("prefill-0", "prefill"), ("decode-0", "decode")):
        row = next(line for line in lines if line.startswith(name)).split()
        assert row[1:6] == [role, "0", "0", "0", str(num_blocks)]
        assert sum(map(int, row[6:10])) == num_blocks
    assert any(line.startswith(apart.metrics_urls["gateway"]) for line in lines)
    assert not any("does not answer" in line for line in lines)


def test_figures_add_up_with_what_clients_and_spans_saw(apart: LocalStack) -> None:
    before = scrape_all(apart)

    def more(process: str, name: str, **labels: str) -> float:
        return after[process].value(name, **labels) - before[process].value(name, **labels)

    prompts = [[3000 + (n * 7 + index) % 900 for n in range(100 + index)] for index in range(3)]
    answers = ask_together(apart.gateway_address, [token_request(p, greedy(6, ignore_eos=True)) for p in prompts])
    trace_id = traced_request(apart, 300)
    spans = spans_of(apart, trace_id, {"kv.transfer", "decode.run"})
    attributes = {item.key: item.value for item in spans["kv.transfer"].attributes}
    deadline = time.monotonic() + 20
    while True:
        after = scrape_all(apart)
        if more("decode-0", "baton_worker_attempts_total", outcome="done") == 4 or time.monotonic() > deadline:
            break
        time.sleep(0.1)

    assert more("gateway", "baton_gateway_requests_total", outcome="length") == 4
    assert more("gateway", "baton_gateway_output_tokens_total") == sum(len(a.token_ids) for a in answers) + 5
    assert more("gateway", "baton_gateway_prompt_tokens_total") == sum(map(len, prompts)) + 300
    assert more("gateway", "baton_gateway_time_to_first_token_seconds_count") == 4
    assert more("gateway", "baton_hand_over_part_seconds_count", part="reserve") == 4
    for part in ("queue", "compute", "transfer"):
        assert more("prefill-0", "baton_hand_over_part_seconds_count", part=part) == 4
    assert more("decode-0", "baton_hand_over_part_seconds_count", part="admit") == 4

    handed_over = sum(a.hand_over.bytes for a in answers)
    assert more("prefill-0", "baton_worker_kv_transfer_bytes_total") == (
        handed_over + attributes["baton.kv.bytes"].int_value
    )
    assert more("prefill-0", "baton_worker_kv_transfer_blocks_total") == (
        sum(a.hand_over.blocks for a in answers) + attributes["baton.kv.blocks"].int_value
    )
    assert more("prefill-0", "baton_worker_kv_writes_total", result="done") >= 4
    assert more("prefill-0", "baton_worker_kv_transfer_seconds_total") > 0

    num_prompt_tokens = sum(map(len, prompts)) + 300
    hits = more("prefill-0", "baton_worker_prefix_tokens_total", result="hit")
    assert more("prefill-0", "baton_worker_step_tokens_sum") + hits == num_prompt_tokens
    assert more("decode-0", "baton_worker_step_tokens_sum") == 3 * 5 + 4  # each output token but the last one
    for worker in ("prefill-0", "decode-0"):
        found = after[worker]
        states = found.by("state", "baton_worker_kv_blocks")
        assert sum(states.values()) == found.value("baton_worker_kv_pool_blocks") > 0
        steps = more(worker, "baton_worker_step_duration_seconds_count")
        assert steps == more(worker, "baton_worker_step_requests_count") > 0
        assert more(worker, "baton_worker_prefix_tokens_total") == num_prompt_tokens
        assert found.value("baton_worker_digest_mismatches_total") == 0
        assert found.value("baton_redis_up") == 1
        assert found.value("baton_worker_draining") == 0
