"""A role over real NIXL in a process of its own, which a test can stop and kill, driven by commands over a pipe."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from baton.types import EngineStats, Role
from engine.config import LeaseConfig, SchedulerConfig
from engine.messages import Command, Event
from engine.roles.base import EngineRole
from tests.fakes.role_pair import make_context, region, turn

WITHIN_S = 60.0
STEPS = SchedulerConfig(max_num_batched_tokens=128, max_num_seqs=8)  # any prompt in one step


def _run(pipe: Connection, folder: str, role_name: str, name: str, blocks: int, lease: LeaseConfig) -> None:
    from engine.roles.decode import DecodeRole
    from engine.roles.prefill import PrefillRole
    from kv_transfer.nixl import NixlReceiver, NixlSender
    from kv_transfer.tether.listener import TetherOptions

    events: list[Event] = []
    context = make_context(Path(folder), Role(role_name), events, blocks, lease, incarnation=name, steps=STEPS)
    role: EngineRole
    if role_name == Role.PREFILL:
        role = PrefillRole(context, NixlSender(region(context), name))
    else:
        tether = TetherOptions(linger_s=lease.longest_write_s)
        role = DecodeRole(context, NixlReceiver(region(context), name, tether))
    pipe.send(None)
    while True:
        try:
            if pipe.poll(0.001):
                kind, argument = pipe.recv()
                pipe.send(_answer(kind, argument, role, events))
        except EOFError:
            return
        turn(role)


def _answer(kind: str, argument: Any, role: EngineRole, events: list[Event]) -> Any:
    pool = role.context.runner.pool
    match kind:
        case "handle":
            role.handle(argument)
            role.context.flush()
        case "fill":
            pool[argument[0]] = argument[1]
        case "events":
            return events
        case "read":
            return pool[argument].numpy().tobytes()
        case "stats":
            return role.stats(), role.check_integrity()
    return None


class RoleProcess:
    """One prefill or decode worker's core, more or less. `name` is its incarnation, too."""

    def __init__(self, folder: Path, role: Role, name: str, blocks: int, lease: LeaseConfig) -> None:
        context: Any = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, str(folder), role.value, name, blocks, lease)
        self.process = context.Process(target=_run, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        self._pipe.recv()

    def _ask(self, kind: str, argument: Any = None) -> Any:
        self._pipe.send((kind, argument))
        assert self._pipe.poll(WITHIN_S), f"no answer to {kind} within {WITHIN_S} s"
        return self._pipe.recv()

    def handle(self, command: Command) -> None:
        """Gives a command to the role."""
        self._ask("handle", command)

    def tell(self, command: Command) -> None:
        """The same, without waiting until it has been taken."""
        self._pipe.send(("handle", command))

    def told(self) -> None:
        """Waits until that has been taken."""
        assert self._pipe.poll(WITHIN_S)
        self._pipe.recv()

    def events(self, name: str, kind: type) -> list[Any]:
        """What the role has said of a request."""
        said = self._ask("events")
        return [event for event in said if isinstance(event, kind) and event.request_id == name]

    def stats(self) -> EngineStats:
        """A snapshot; the books are checked."""
        stats, problems = self._ask("stats")
        assert problems == []
        assert isinstance(stats, EngineStats)
        return stats

    def fill(self, blocks: Sequence[int], value: float) -> None:
        """Puts one value into whole blocks of the pool."""
        self._ask("fill", (list(blocks), value))

    def read(self, blocks: Sequence[int]) -> bytes:
        """Blocks of the pool."""
        data = self._ask("read", list(blocks))
        assert isinstance(data, bytes)
        return data

    def signal(self, number: int) -> None:
        """Sends a signal."""
        os.kill(self.process.pid, number)

    def stop(self) -> None:
        """SIGSTOP, and waits for it."""
        self.signal(signal.SIGSTOP)
        self.wait_stopped()

    def wait_stopped(self) -> None:
        """Until all threads have stopped, by whomever."""

        def stopped() -> bool:
            threads = psutil.Process(self.process.pid).threads()
            return {psutil.Process(thread.id).status() for thread in threads} == {psutil.STATUS_STOPPED}

        until(stopped)

    def end(self) -> None:
        """Kills it. Idempotent."""
        self._pipe.close()
        self.process.kill()
        self.process.join()


def until(condition: Callable[[], Any], within_s: float = WITHIN_S) -> None:
    """Waits until `condition` holds; fails after `within_s`."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not come true within {within_s} s"
        time.sleep(0.005)
