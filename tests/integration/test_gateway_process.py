"""A gateway as a process, its sizes and its spans."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from baton.rpc import inference_pb2, inference_pb2_grpc, sampling_pb2
from tests.fakes.gateway_stack import (
    ANSWER,
    PROMPT,
    FakeCollector,
    Stack,
    attributes,
    eventually,
    ids_of,
    running_stack,
)
from tests.fakes.text_model import write_text_model
from tests.fakes.workers import hang

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def traced(model: Path) -> AsyncIterator[tuple[Stack, FakeCollector]]:
    collector = FakeCollector()
    async with running_stack(model, otlp_endpoint=await collector.start()) as stack:
        yield stack, collector
    await collector.close()


async def test_spans_of_a_request(traced: tuple[Stack, FakeCollector]) -> None:
    stack, collector = traced
    parent = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    sampling = sampling_pb2.SamplingParams(temperature=0.5, max_tokens=5)
    stream = stack.stream(metadata=[parent], request_id="mine", sampling=sampling)
    responses = [response async for response in stream]
    assert responses[0].trace_id == "0af7651916cd43dd8448eb211c80319c"
    names = ("gateway.request", "gateway.tokenize", "gateway.route", "decode.reserve", "gateway.detokenize")
    await eventually(lambda: all(collector.named(name) for name in names))
    root = collector.named("gateway.request")[0]
    assert root.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert root.parent_span_id.hex() == "b7ad6b7169203331"
    told = {name: value for name, value in attributes(root).items() if not name.startswith("baton.ttft")}
    assert told == {
        "baton.request_id": "mine",
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.usage.input_tokens": 40,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.response.finish_reasons": ["length"],
    }
    for name in names[1:]:
        (span,) = collector.named(name)
        assert span.parent_span_id == root.span_id
        assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
    route = attributes(collector.named("gateway.route")[0])
    assert route["baton.route.chosen"] == "prefill p0, decode d0"
    assert attributes(collector.named("gateway.detokenize")[0])["baton.detokenize.tokens"] == 5
    context = f"00-{root.trace_id.hex()}-{root.span_id.hex()}-01"
    assert stack.prefill.metadata[0]["traceparent"] == stack.decode.metadata[0]["traceparent"] == context


async def test_failures_show_in_the_root_span(traced: tuple[Stack, FakeCollector]) -> None:
    stack, collector = traced
    await stack.error(sampling=sampling_pb2.SamplingParams(n=17))
    stack.decode.script = hang
    stream = stack.stream()
    await stream.read()
    stream.cancel()
    await eventually(lambda: len(collector.named("gateway.request")) == 2)
    failed, cancelled = sorted(collector.named("gateway.request"), key=lambda span: span.start_time_unix_nano)
    assert failed.status.message.startswith("n: got 17, expected 1 to 16")
    assert cancelled.status.message == "cancelled, or past its deadline"


async def test_too_big_a_request_is_told_what_to_change(traced: tuple[Stack, FakeCollector]) -> None:
    stack, _ = traced
    error = await stack.error(text="x" * (50 << 20))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.details().startswith("request is 50.0 MiB, the limit is 4 MiB; shorten the prompt")
    assert (await stack.error(text="x" * (70 << 20))).code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_other_requests_go_on_while_a_long_text_is_encoded(traced: tuple[Stack, FakeCollector]) -> None:
    stack, _ = traced
    long = asyncio.create_task(stack.error(text="the quick brown fox " * 150_000, deadline_s=60))
    await asyncio.sleep(0.05)
    rounds = 0
    while not long.done():
        await stack.generate()
        rounds += 1
    assert "shorten the prompt" in (await long).details()
    assert rounds > 3


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"model": "gpt"}, grpc.StatusCode.NOT_FOUND, "model: got 'gpt', expected one of: tiny"),
        ({"text": ""}, grpc.StatusCode.INVALID_ARGUMENT, "prompt.text: got an empty string"),
        (
            {"sampling": sampling_pb2.SamplingParams(max_tokens=9000)},
            grpc.StatusCode.INVALID_ARGUMENT,
            "max_tokens: got 9000, expected at most 216 (context 256 minus 40 prompt tokens)",
        ),
    ],
)
async def test_bad_input_over_the_wire(
    traced: tuple[Stack, FakeCollector], fields: dict, code: grpc.StatusCode, words: str
) -> None:
    error = await traced[0].error(**fields)
    assert (error.code(), error.details()[: len(words)]) == (code, words)


def spawn(model: Path, port_file: Path, *options: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "gateway", "--model", str(model), "--port", "0", "--port-file", str(port_file)]
    # Nothing listens there: a gateway starts and answers without Redis, too.
    command += ["--redis-url", "redis://127.0.0.1:9/0", *options]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, env=os.environ)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_process_serves_and_stops(model: Path, tmp_path: Path, number: signal.Signals) -> None:
    port_file = tmp_path / "port"
    process = spawn(model, port_file, "--model-name", "mine")
    try:
        await eventually(port_file.exists, seconds=30)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port_file.read_text()}") as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            models = await stub.ListModels(inference_pb2.ListModelsRequest())
            assert models.models[0].name == "mine"
            request = inference_pb2.GenerateRequest(tokens=inference_pb2.TokenPrompt(token_ids=PROMPT))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Generate(request).read()
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        process.send_signal(number)
        assert await asyncio.to_thread(process.wait, 10) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (["--max-message-mib", "65"], 2, b"--max-message-mib: got 65, expected 1 to 64"),
        (["--port", "99999"], 2, b"--port: got 99999, expected 0 to 65535"),
        (["--model", "/nowhere"], 1, b"gateway: no config.json in /nowhere"),
        (["--host", "203.0.113.1"], 1, b"cannot listen on 203.0.113.1:0"),
    ],
)
async def test_process_that_cannot_start_says_why(
    model: Path, tmp_path: Path, options: list[str], status: int, words: bytes
) -> None:
    process = spawn(model, tmp_path / "port", *options)
    _, stderr = await asyncio.to_thread(process.communicate, timeout=30)
    assert process.returncode == status
    assert words in stderr
    assert b"Traceback" not in stderr


async def test_a_taken_port_is_named(model: Path, tmp_path: Path) -> None:
    async with running_stack(model) as stack:
        process = spawn(model, tmp_path / "port", "--port", str(stack.port))
        _, stderr = await asyncio.to_thread(process.communicate, timeout=30)
        assert process.returncode == 1
        assert f"gateway: cannot listen on 127.0.0.1:{stack.port}".encode() in stderr
        assert b"choose another --port" in stderr
        assert ids_of(await stack.generate()) == ANSWER


def test_gateway_imports_no_torch() -> None:
    code = "import sys, gateway.__main__; sys.exit(any(m in sys.modules for m in ('torch', 'engine', 'kv_transfer')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
