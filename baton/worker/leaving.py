"""How a worker is asked to leave, and what it does then: nothing new, what runs to its end, the rest elsewhere."""

import asyncio
import logging
import signal

from baton.directory.registrar import WorkerRegistrar
from baton.grpc_util.server import Server
from baton.worker.admission import Admission
from baton.worker.engine import Engine

logger = logging.getLogger(__name__)

# Writes under way end, and aborted calls are answered, within this. With the default of --drain-timeout-s and what
# closing takes, a worker is gone within the 30 s that Kubernetes gives a pod.
_ABORT_S = 2.0
# What could not be moved at once, because there was no room, say, is tried again for so long.
_MOVE_S = 3.0
_ASK_AGAIN_S = 1.0


class Asked:
    """What signals and callers have asked of a worker: SIGTERM to drain, a second one or SIGINT to stop at once."""

    def __init__(self, drain_timeout_s: float) -> None:
        self.drain = asyncio.Event()
        self.stop = asyncio.Event()
        self.timeout_s = drain_timeout_s

    def listen(self) -> None:
        """From now on signals are heeded."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._terminate)
        loop.add_signal_handler(signal.SIGINT, self.stop_now)

    def begin_drain(self, timeout_s: float | None = None) -> None:
        """`timeout_s`: for what runs, instead of the configured time. Only the first call counts."""
        if not self.drain.is_set():
            self.timeout_s = self.timeout_s if timeout_s is None else timeout_s
            self.drain.set()

    def stop_now(self) -> None:
        """Nothing is waited for any more."""
        self.stop.set()
        self.drain.set()

    def _terminate(self) -> None:
        if self.drain.is_set():
            self.stop_now()
        else:
            self.begin_drain()


class Leaving:
    """The end of one worker's service, from the moment it was asked to drain."""

    def __init__(
        self, name: str, engine: Engine, server: Server, registrar: WorkerRegistrar, admission: Admission
    ) -> None:
        self._name = name
        self._engine = engine
        self._server = server
        self._registrar = registrar
        self._admission = admission

    async def drain(self, timeout_s: float) -> None:
        """Refuses new work, says so to everybody, and waits for what runs, `timeout_s` at most; then has it moved."""
        self._admission.drain()
        await self._server.set_serving(False)
        self._registrar.announce_draining()
        logger.info("worker %s drains: %d requests open", self._name, self._engine.num_open)
        if await self._is_idle_within(timeout_s):
            return
        deadline_s = asyncio.get_running_loop().time() + _MOVE_S
        while asked := self._engine.ask_to_move():
            left_s = deadline_s - asyncio.get_running_loop().time()
            logger.info("worker %s: %d requests are to go on elsewhere", self._name, asked)
            if left_s <= 0 or await self._is_idle_within(min(_ASK_AGAIN_S, left_s)):
                return

    async def abort_rest(self) -> None:
        """Ends what still runs. Returns when no KV write of it is under way, or after _ABORT_S."""
        self._admission.end()
        if self._engine.num_open:
            logger.warning("worker %s leaves %d requests to other workers", self._name, self._engine.num_open)
        self._engine.abort_all()
        if not await self._is_idle_within(_ABORT_S):
            logger.warning("worker %s: %d requests did not end in time", self._name, self._engine.num_open)

    async def _is_idle_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._engine.wait_idle(), seconds)
        except TimeoutError:
            return False
        return True
