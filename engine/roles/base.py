"""The role seam: commands in, events out, and one step at a time; all on the engine core's one thread."""

import logging
import time
from abc import ABC, abstractmethod

from baton.errors import ErrorCode
from baton.types import EngineStats
from engine.context import EngineContext
from engine.messages import AddLocal, AddPrefill, Command, Failed, Refused, Reserve
from engine.request import Request

logger = logging.getLogger(__name__)

POLL_S = 0.001  # between looks at transfers while nothing can be computed
IDLE_S = 0.2  # between looks at leases while nothing is under way


class EngineRole(ABC):
    """What one engine core does. The loop calls `handle`, `poll` and `step` in turn and flushes events behind them."""

    def __init__(self, context: EngineContext) -> None:
        self.context = context

    @abstractmethod
    def handle(self, command: Command) -> None:
        """Takes one command from the service; never raises for a bad one, but answers it with an event, or logs it."""

    @abstractmethod
    def poll(self) -> None:
        """Looks at transfers, leases and quarantines; returns at once."""

    @abstractmethod
    def step(self) -> bool:
        """Computes one step; False when there was nothing to compute."""

    @abstractmethod
    def idle_s(self) -> float:
        """How long the loop may sleep, unless a command arrives, when `step` had nothing to compute."""

    @abstractmethod
    def stats(self) -> EngineStats:
        """A snapshot."""

    @abstractmethod
    def check_integrity(self) -> list[str]:
        """What is wrong with the block accounts; empty when all is well."""

    @abstractmethod
    def close(self) -> None:
        """Releases the connector. Idempotent."""

    def refuse(self, command: Command) -> None:
        """Answers a command that belongs to another role: a fault of the service, which its other requests survive."""
        message = f"a {self.context.config.role} engine got a {type(command).__name__} command"
        logger.error(message)
        if isinstance(command, AddLocal | AddPrefill):
            request = self.context.new_request(command)
            self.fail(request, ErrorCode.INTERNAL, message, time.time_ns())
        elif isinstance(command, Reserve):
            self.context.emit(Refused(command.request_id, command.epoch, ErrorCode.INTERNAL, message))

    def fail(self, request: Request, code: ErrorCode, message: str, now_unix_ns: int) -> None:
        """Ends one request badly; its blocks are the caller's business."""
        self.context.emit(Failed(*request.key, code, message, request.timeline(now_unix_ns)))
