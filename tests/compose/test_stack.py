"""docker-compose.cpu.yml: images, requests through published ports, traces, scaling, containers that die or leave."""

import contextlib
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from baton.rpc import inference_pb2
from tests.compose.composed import Project
from tests.compose.ingredients import ROOT
from tests.e2e.client import ask_together, greedy, token_request
from tests.e2e.oracle import Oracle, prompts_with_clear_answers
from tests.e2e.under_load import ids_of, stream_all

pytestmark = pytest.mark.timeout(900)  # the first test waits for the images

MAX_TOKENS = 24
FEW_TOKENS = 30  # of all requests together: most of the answers are still to come
Known = tuple[list[inference_pb2.GenerateRequest], list[list[int]]]


def get(stack: Project, path: str, body: dict[str, Any] | None = None, trace_id: str = "") -> str:
    """An answer to HTTP."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"traceparent": f"00-{trace_id}-{'1' * 16}-01"} if trace_id else {}
    request = urllib.request.Request(f"http://{stack.machine.address}:8000{path}", data, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(answer.read().decode())


def eventually(holds: Callable[[], bool], within_s: float = 60.0) -> bool:
    deadline_s = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.3)
    return True


@pytest.fixture(scope="module")
def known(smollm2: Path) -> Known:
    """Requests, and the tokens that transformers answers with."""
    prompts, answers = prompts_with_clear_answers(Oracle(smollm2), [40, 90, 20, 130, 60, 33], MAX_TOKENS)
    return [token_request(ids, greedy(MAX_TOKENS)) for ids in prompts], [answer.token_ids for answer in answers]


def test_images_hold_the_pinned_releases_and_nothing_else(stack: Project) -> None:
    pins = {line for line in (ROOT / "compose" / "constraints.txt").read_text().splitlines() if line[0] != "#"}
    for service in ("gateway", "decode"):
        (container,) = stack.containers(service)
        frozen = stack.machine.docker("exec", container, "pip", "freeze", "--all").lower().replace("+cpu", "").split()
        found = {line.replace("_", "-") for line in frozen if "==" in line and not line.startswith("pip==")}
        # Debian's venv brings a setuptools of its own.
        assert {line for line in found - pins if not line.startswith(("baton==", "setuptools=="))} == set()
        assert any(line.startswith("torch==") for line in found) == (service == "decode")


def test_images_run_as_nobody_in_particular_and_the_gateways_has_no_torch(stack: Project) -> None:
    for service in ("gateway", "prefill", "decode", "collector"):
        (container,) = stack.containers(service)
        config = stack.inspect(container)["Config"]
        assert config["User"] == "10001:10001"
        assert config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    (gateway,), (decode,) = stack.containers("gateway"), stack.containers("decode")
    find = ["exec", gateway, "python", "-c", "import importlib.util as u, gateway; print(u.find_spec('torch'))"]
    assert stack.machine.docker(*find).strip() == "None"
    kernels = ["exec", decode, "python", "-c", "from baton_kernels import native; print(native.available())"]
    assert stack.machine.docker(*kernels).strip() == "True"


def test_a_grpc_request_is_handed_from_one_container_to_the_other(stack: Project, known: Known) -> None:
    requests, expected = known
    (answer,) = ask_together(stack.gateway_address, requests[:1])
    assert answer.token_ids == expected[0]
    assert answer.hand_over.prefill_worker.startswith("prefill-")
    assert answer.hand_over.decode_worker.startswith("decode-")
    assert answer.hand_over.bytes > 0


def test_an_http_request_leaves_a_trace_of_all_three_processes(stack: Project) -> None:
    body = {"messages": [{"role": "user", "content": "What is a KV cache?"}], "max_tokens": 8, "temperature": 0}
    trace_id = os.urandom(16).hex()
    text = get(stack, "/v1/chat/completions", body, trace_id)
    assert json.loads(text)["choices"][0]["message"]["content"]

    def complete() -> bool:
        try:
            tree = get(stack, f"/traces/{trace_id}")
        except urllib.error.HTTPError:  # no span has come yet
            return False
        return all(name in tree for name in ("gateway.request", "prefill.compute", "kv.transfer", "decode.run"))

    assert eventually(complete)


def test_prefill_and_decode_scale_and_survive_a_crash(stack: Project, known: Known) -> None:
    requests, expected = known
    stack.up("prefill", "decode", prefill=2, decode=2)
    assert eventually(lambda: len(stack.registered("prefill")) == len(stack.registered("decode")) == 2)
    victim = stack.containers("decode")[0]
    answers = stream_all(stack, requests, lambda tokens: tokens >= FEW_TOKENS, lambda: stack.crash(victim))
    assert [ids_of(answer) for answer in answers] == expected
    assert eventually(lambda: stack.inspect(victim)["RestartCount"] == 1)
    stack.wait_healthy("decode")
    assert eventually(lambda: len(stack.registered("decode")) == 2)


_SCRAPE_ALL = """
import socket, sys, urllib.request
for service in sys.argv[1:]:
    for address in {found[4][0] for found in socket.getaddrinfo(service, 9100)}:
        text = urllib.request.urlopen(f"http://{address}:9100/metrics", timeout=10).read().decode()
        print(service, *[line for line in text.splitlines() if line.startswith("baton_gateway_workers{")], sep="\\n")
"""


def test_a_services_name_leads_to_the_metrics_of_each_of_its_containers(stack: Project) -> None:
    """As Prometheus is told to find them."""
    stack.up("prefill", "decode", prefill=2, decode=2)
    (gateway,) = stack.containers("gateway")
    scrape = ["exec", gateway, "python", "-c", _SCRAPE_ALL, "gateway", "prefill", "decode"]
    known = {f'baton_gateway_workers{{role="{role}",state="in_use"}} 2.0' for role in ("prefill", "decode")}
    assert eventually(lambda: known <= set(stack.machine.docker(*scrape).splitlines()))
    names = [line for line in stack.machine.docker(*scrape).splitlines() if "{" not in line]
    assert sorted(names) == ["decode", "decode", "gateway", "prefill", "prefill"]


def test_a_worker_that_is_stopped_leaves_in_order(stack: Project, known: Known) -> None:
    requests, expected = known
    stack.up("prefill", "decode", prefill=2, decode=2)
    victim = stack.containers("decode")[1]
    grace_s = stack.inspect(victim)["Config"]["StopTimeout"]

    def stop() -> None:
        stack.machine.docker("stop", "--time", str(grace_s), victim)

    answers = stream_all(stack, requests, lambda tokens: tokens >= FEW_TOKENS, stop)
    assert [ids_of(answer) for answer in answers] == expected
    assert stack.inspect(victim)["State"]["ExitCode"] == 0


def test_the_charts_hook_before_a_stop_has_a_worker_leave_in_order(stack: Project, known: Known) -> None:
    requests, expected = known
    stack.up("prefill", "decode", prefill=2, decode=2)
    assert eventually(lambda: len(stack.registered("decode")) == 2)
    with helm_python.Chart.load(str(ROOT / "deploy" / "helm" / "baton")) as chart:
        workers = yaml.safe_load_all(chart.render({})["baton/templates/workers.yaml"])
    deployment = next(manifest for manifest in workers if manifest)
    hook = deployment["spec"]["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    victim = stack.containers("decode")[0]
    restarts = stack.inspect(victim)["RestartCount"]

    def drain() -> None:
        with contextlib.suppress(RuntimeError):  # it goes with its container
            stack.machine.docker("exec", victim, *hook)

    answers = stream_all(stack, requests, lambda tokens: tokens >= FEW_TOKENS, drain)
    assert [ids_of(answer) for answer in answers] == expected
    assert eventually(lambda: stack.inspect(victim)["RestartCount"] == restarts + 1)
