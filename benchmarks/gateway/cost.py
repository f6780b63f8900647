"""What a gateway costs, with scripted workers behind it: latency added at a rate, and tokens by core second.

Workers, gateway and clients are processes of their own; Redis is a real one. Added latency: the first token through the
gateway (look-up, Reserve, Prefill and all) less that of a direct Prefill call, at the same rate. Tokens by core second:
what was streamed, a message a token, by the processor time that the gateway's processes took.
Run on a machine that does nothing else: python benchmarks/gateway/cost.py
"""

import argparse
import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import grpc
import msgspec
import psutil

from baton.directory.registrar import WorkerRegistrar
from baton.grpc_util.server import CHANNEL_OPTIONS
from baton.model_spec import load_model_spec
from baton.rpc import inference_pb2, inference_pb2_grpc, kv_pb2, sampling_pb2, worker_pb2, worker_pb2_grpc
from baton.types import Role
from benchmarks import record
from tests.fakes.redis_server import RedisServer
from tests.fakes.text_model import write_text_model
from tests.fakes.workers import FakeWorker, admitted, finished, prefill_of, tokens

_PROMPT = list(range(40, 80))
_OUTPUT = 200
_ITL_S = 0.02


async def _decode(request: worker_pb2.DecodeRequest) -> AsyncIterator[worker_pb2.DecodeEvent]:
    yield admitted()
    for position in range(1, _OUTPUT):
        await asyncio.sleep(_ITL_S)
        yield tokens(position, 100)
    yield finished()


async def _serve_workers(redis_url: str, fingerprint: str) -> None:
    """Prints the address of the prefill worker when they are registered; runs until it is killed."""
    serving = []
    for name, role in (("p0", Role.PREFILL), ("d0", Role.DECODE)):
        worker = FakeWorker(name, role)
        worker.prefill.script, worker.decode.script = prefill_of([100] * _OUTPUT), _decode
        fields = msgspec.structs.replace(await worker.start(), model_fingerprint=fingerprint)
        registrar = WorkerRegistrar(redis_url, fields)
        await registrar.start()
        serving.append((worker, registrar))
        if role is Role.PREFILL:
            print(fields.address, flush=True)
    await asyncio.Event().wait()


async def _through_gateway(stub: inference_pb2_grpc.InferenceStub, max_tokens: int) -> float:
    """Milliseconds to the first token; reads the answer to its end."""
    sampling = sampling_pb2.SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    prompt = inference_pb2.TokenPrompt(token_ids=_PROMPT)
    start_s, first_ms = time.perf_counter(), 0.0
    async for response in stub.Generate(inference_pb2.GenerateRequest(tokens=prompt, sampling=sampling), timeout=60):
        if response.token_ids and not first_ms:
            first_ms = (time.perf_counter() - start_s) * 1000
    return first_ms


async def _direct(stub: worker_pb2_grpc.PrefillWorkerStub) -> float:
    """The same of a Prefill call, which ends with its first token."""
    sampling = sampling_pb2.SamplingParams(max_tokens=1)
    request = worker_pb2.PrefillRequest(
        request_id="direct", epoch=1, prompt_token_ids=_PROMPT, sampling=sampling, grant=kv_pb2.Grant()
    )
    start_s, first_ms = time.perf_counter(), 0.0
    async for event in stub.Prefill(request, timeout=60):
        if event.HasField("first_token"):
            first_ms = (time.perf_counter() - start_s) * 1000
    return first_ms


async def _at_rate(call: Callable[[], Awaitable[float]], rate: float, seconds: float) -> list[float]:
    """Milliseconds of calls that begin at fixed times, sorted."""
    loop = asyncio.get_running_loop()
    start_s, running = loop.time(), []
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, start_s + number / rate - loop.time()))
        running.append(asyncio.ensure_future(call()))
    return sorted(await asyncio.gather(*running))


def _cpu_s(gateway: subprocess.Popen[bytes]) -> float:
    process = psutil.Process(gateway.pid)
    return sum(sum(one.cpu_times()[:2]) for one in [process, *process.children()])


@contextlib.contextmanager
def _running(processes: int) -> Iterator[tuple[subprocess.Popen[bytes], str, str]]:
    """A gateway, its address and that of the prefill worker."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        model = write_text_model(folder / "model")
        redis = RedisServer(folder)
        stack.callback(redis.close)
        fingerprint = load_model_spec(model, "tiny").fingerprint
        command = [sys.executable, __file__, "--serve-workers", redis.url, fingerprint]
        workers = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(workers.kill)
        assert workers.stdout is not None
        prefill = workers.stdout.readline().strip()
        port_file = folder / "port"
        command = [sys.executable, "-m", "gateway", "--model", str(model), "--port", "0", "--redis-url", redis.url]
        command += ["--port-file", str(port_file), "--gateway-processes", str(processes)]
        gateway = stack.enter_context(subprocess.Popen(command))
        stack.callback(gateway.terminate)
        while not port_file.exists():
            assert gateway.poll() is None, "the gateway did not start"
            time.sleep(0.05)
        yield gateway, f"127.0.0.1:{port_file.read_text()}", prefill


async def _measure_added(gateway: str, prefill: str, rate: float, seconds: float) -> tuple[list[float], list[float]]:
    async with (
        grpc.aio.insecure_channel(gateway, options=CHANNEL_OPTIONS) as front,
        grpc.aio.insecure_channel(prefill, options=CHANNEL_OPTIONS) as back,
    ):
        through, direct = inference_pb2_grpc.InferenceStub(front), worker_pb2_grpc.PrefillWorkerStub(back)
        await _at_rate(lambda: _through_gateway(through, 1), 50, 1.0)
        added = await _at_rate(lambda: _through_gateway(through, 1), rate, seconds)
        return added, await _at_rate(lambda: _direct(direct), rate, seconds)


async def _measure_stream(process: subprocess.Popen[bytes], address: str, streams: int) -> tuple[float, float]:
    """Tokens by second of the gateway's processor time, and by second."""
    async with contextlib.AsyncExitStack() as stack:
        stubs = []
        for _ in range(16):  # connections, which the kernel deals out
            channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
            stubs.append(inference_pb2_grpc.InferenceStub(await stack.enter_async_context(channel)))
        await asyncio.gather(*(_through_gateway(stub, 2) for stub in stubs))
        cpu_s, start_s = _cpu_s(process), time.perf_counter()
        await asyncio.gather(*(_through_gateway(stubs[i % 16], _OUTPUT) for i in range(streams)))
        total = streams * _OUTPUT
        return total / (_cpu_s(process) - cpu_s), total / (time.perf_counter() - start_s)


def main() -> int:
    """1 when a figure misses what it should reach."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--streams", type=int, default=64, help="at a time (%(default)s)")
    parser.add_argument("--no-record", action="store_true", help="print only")
    parser.add_argument("--serve-workers", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_workers:
        asyncio.run(_serve_workers(*options.serve_workers))
    lines: list[dict[str, Any]] = []
    missed = 0
    for processes in (1, 2):
        with _running(processes) as (gateway, address, prefill):
            if processes == 1:
                through, direct = asyncio.run(_measure_added(address, prefill, options.rate, options.seconds))
                for percentile in (50, 99):
                    place = len(through) * percentile // 100
                    added = through[place] - direct[place]
                    missed += percentile == 50 and added > 2.0
                    params = {"rate": options.rate, "percentile": percentile}
                    lines.append(record.result("gateway_added_ms", "none", params, added, "ms"))
            by_core, by_second = asyncio.run(_measure_stream(gateway, address, options.streams))
            missed += by_core < 8000
            for per, value in (("core second", by_core), ("second", by_second)):
                params = {"processes": processes, "streams": options.streams, "per": per}
                lines.append(record.result("gateway_stream_tok_s", "none", params, value, "tok/s"))
    for line in lines:
        print(line["metric"], line["params"], f"{line['value']:.2f}", line["unit"])
    if not options.no_record:
        print(f"wrote {record.write('gateway_cost', lines)}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
