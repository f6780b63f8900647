"""A server of answers with known delays, over gRPC and HTTP at once, in a process of its own; it keeps its own times.

Which request gets which delays, or fails, is said by its number (`Script`). Its clock is the client's: on one machine
`time.perf_counter` is the same for all processes.
"""

import asyncio
import contextlib
import json
import multiprocessing
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import grpc
from aiohttp import web

from baton.bench.load.lag import LagMonitor
from baton.rpc import inference_pb2, inference_pb2_grpc, sampling_pb2

MODEL = "fake"


@dataclass(frozen=True)
class Script:
    """What is done with the requests; a request's number is the first in its id ("bench-SEED-NUMBER.TURN")."""

    ttft_s: float = 0.02
    itl_s: float = 0.005
    slow_every: int = 0  # every so manieth request waits `slow_ttft_s` for its first token; 0: none
    slow_ttft_s: float = 0.3
    fail_every: int = 0  # every so manieth request fails; 0: none
    break_after: int | None = None  # the stream ends without a finish reason after so many tokens
    tokens_per_message: int = 1
    max_model_len: int = 4096


@dataclass
class Served:
    """One request as the server saw it; times by `time.perf_counter`."""

    request_id: str
    prompt: list[int]
    came_s: float
    sent_s: list[float] = field(default_factory=list)


@dataclass
class LoadServer:
    """A running server's addresses."""

    grpc_url: str
    http_url: str
    _pipe: Connection

    def lag_p99_ms(self) -> float:
        """How far the server's own event loop was behind since this was last asked."""
        self._pipe.send("lag")
        return float(self._pipe.recv())

    def log(self) -> list[Served]:
        """All requests so far."""
        self._pipe.send("log")
        log: list[Served] = self._pipe.recv()
        return log


@contextlib.contextmanager
def load_server(script: Script) -> Iterator[LoadServer]:
    """Runs until the block is left."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=_main, args=(script, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        grpc_port, http_port = mine.recv()
        yield LoadServer(f"grpc://127.0.0.1:{grpc_port}", f"http://127.0.0.1:{http_port}", mine)
    finally:
        mine.close()
        process.join(10)
        process.kill()


def _main(script: Script, pipe: Connection) -> None:
    asyncio.run(_serve(script, pipe))


class _Refused(Exception):
    pass


class _Both(inference_pb2_grpc.InferenceServicer):
    def __init__(self, script: Script) -> None:
        self._script = script
        self.log: list[Served] = []

    async def messages(self, request_id: str, prompt: list[int], num_tokens: int) -> AsyncIterator[tuple[int, bool]]:
        """Tokens in each message, and whether it is the last one. Waits go by the clock, so that they do not add up."""
        script, served = self._script, Served(request_id, prompt, time.perf_counter())
        self.log.append(served)
        number = int(request_id.rpartition("-")[2].partition(".")[0])
        if script.fail_every and number % script.fail_every == 0:
            raise _Refused(f"request {number} fails")
        slow = script.slow_every and number % script.slow_every == script.slow_every - 1
        due_s = served.came_s + (script.slow_ttft_s if slow else script.ttft_s)
        left = num_tokens
        while left and (script.break_after is None or num_tokens - left < script.break_after):
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            count = min(left, script.tokens_per_message)
            left -= count
            served.sent_s.append(time.perf_counter())
            yield count, not left
            due_s += script.itl_s

    async def ListModels(self, request: Any, context: Any) -> inference_pb2.ListModelsResponse:
        model = inference_pb2.Model(name=MODEL, max_model_len=self._script.max_model_len)
        return inference_pb2.ListModelsResponse(models=[model])

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[inference_pb2.GenerateResponse]:
        prompt, total = list(request.tokens.token_ids), request.sampling.max_tokens
        try:
            async for count, last in self.messages(request.request_id, prompt, total):
                response = inference_pb2.GenerateResponse(token_ids=[7] * count, text="x")
                if last:
                    response.finish_reason = sampling_pb2.FINISH_REASON_LENGTH
                    usage = sampling_pb2.Usage(prompt_tokens=len(prompt), completion_tokens=total)
                    response.usage.CopyFrom(usage)
                yield response
        except _Refused as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        try:
            async for count, last in self.messages(request.headers["X-Request-Id"], body["prompt"], body["max_tokens"]):
                if not response.prepared:
                    await response.prepare(request)
                choice = {"index": 0, "text": "x" * count, "finish_reason": "length" if last else None}
                await response.write(_event({"object": "text_completion", "choices": [choice]}))
        except _Refused as error:
            return web.json_response({"error": {"message": str(error)}}, status=429)
        if self._script.break_after is not None:
            return response
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
        await response.write(_event({"choices": [], "usage": usage}))
        await response.write(b"data: [DONE]\n\n")
        return response


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


async def _serve(script: Script, pipe: Connection) -> None:
    both = _Both(script)
    server = grpc.aio.server()
    inference_pb2_grpc.add_InferenceServicer_to_server(both, server)
    grpc_port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    app = web.Application(client_max_size=64 << 20)
    app.router.add_get("/v1/models", both.models)
    app.router.add_post("/v1/completions", both.completions)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    pipe.send((grpc_port, runner.addresses[0][1]))
    with contextlib.suppress(EOFError):  # the test has ended
        monitor = LagMonitor(0)
        monitor.start()
        while asked := await asyncio.to_thread(pipe.recv):
            if asked == "log":
                pipe.send(both.log)
            else:
                pipe.send(monitor.stop([]).loop_lag_p99_ms)
                monitor = LagMonitor(0)
                monitor.start()
    await runner.cleanup()
    await server.stop(0)
