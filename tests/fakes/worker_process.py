"""A real worker service in a process of its own, whose engine core is the fake one."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from signal import SIGINT

import grpc
import psutil

from baton.grpc_util.server import CHANNEL_OPTIONS
from baton.rpc import worker_pb2_grpc

FAKE_CORE = (sys.executable, str(Path(__file__).with_name("engine_core.py")))
_LAUNCH = """
import json, sys
import engine.client
engine.client.CORE_COMMAND = tuple(json.loads(sys.argv.pop(1)))
from {module}.__main__ import main
sys.exit(main())
"""


class WorkerProcess:
    """Starts at once; use `await wait_serving()` before calling it."""

    def __init__(
        self, module: str, folder: Path, redis_url: str, *flags: str, core_flags: Sequence[str] = (), name: str = "w"
    ) -> None:
        """`flags` go to the service, `core_flags` to the fake core."""
        self.name = name
        self.port_file = folder / f"{name}.port"
        self.log_file = folder / f"{name}.log"
        core = json.dumps([*FAKE_CORE, *core_flags])
        command = [sys.executable, "-c", _LAUNCH.format(module=module), core]
        command += ["--model", "/models/fake-model", "--name", name, "--redis-url", redis_url]
        command += ["--port-file", str(self.port_file), *flags]
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self.channel: grpc.aio.Channel | None = None

    async def wait_serving(self) -> "WorkerProcess":
        """Returns when the port file is there, with the stubs connected."""
        deadline_s = time.monotonic() + 30
        while not self.port_file.exists():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline_s, self.log()
            await asyncio.sleep(0.02)
        self.address = f"127.0.0.1:{self.port_file.read_text()}"
        self.connect()
        return self

    def connect(self) -> None:
        """Stubs for the running event loop."""
        self.channel = grpc.aio.insecure_channel(self.address, options=CHANNEL_OPTIONS)
        self.prefill = worker_pb2_grpc.PrefillWorkerStub(self.channel)
        self.decode = worker_pb2_grpc.DecodeWorkerStub(self.channel)
        self.control = worker_pb2_grpc.WorkerControlStub(self.channel)

    def core_pid(self) -> int:
        """Of its engine core."""
        (core,) = psutil.Process(self.process.pid).children()
        return int(core.pid)

    async def wait_exit(self, within_s: float = 10.0) -> int:
        """Its exit code."""
        return await asyncio.to_thread(self.process.wait, within_s)

    def log(self) -> str:
        """What it has written."""
        return self.log_file.read_text()

    async def close(self) -> None:
        """Stops it, if it still runs; nothing is left behind."""
        if self.channel is not None:
            await self.channel.close()
        children = psutil.Process(self.process.pid).children() if self.process.poll() is None else []
        if self.process.poll() is None:
            self.process.terminate()
            self.process.send_signal(SIGINT)  # nothing is drained
        try:
            await self.wait_exit()
        finally:
            self.process.kill()
            for child in children:
                if child.is_running():
                    child.kill()
