"""Named points of the protocol where a test makes a process fail; off, and not to be armed by accident, elsewhere.

A process is armed by BATON_FAULTS, a `Plan` as JSON; it does not start when that is anything else. A simulation in one
process installs its own `Faults`. Unarmed, a point costs a call and a comparison.
"""

import enum
import logging
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol

import msgspec

logger = logging.getLogger(__name__)

VARIABLE = "BATON_FAULTS"


class Point(enum.StrEnum):
    """Where faults happen; in the order of a request's life."""

    RESERVE_SENT = "reserve.sent"  # gateway
    RESERVE_RECEIVED = "reserve.received"  # decode's engine core
    PREFILL_ACCEPTED = "prefill.accepted"  # prefill's engine core, as all with "kv" but for the last four
    FIRST_TOKEN_SENT = "first_token.sent"
    KV_BEGIN = "kv.begin"  # before decode is told that a write is to come
    KV_POST = "kv.post"  # after the last look at the lease, before the post
    KV_POSTED = "kv.posted"
    KV_WRITE_DONE = "kv.write_done"
    KV_END = "kv.end"  # before decode is told that none is under way any more
    KV_READY_RECEIVED = "kv_ready.received"  # decode's engine core, up to tokens.sent; carries a message
    KV_VERIFIED = "kv.verified"
    ADMITTED = "decode.admitted"
    TOKENS_SENT = "tokens.sent"
    RELEASE_RECEIVED = "release.received"
    RENEW_RECEIVED = "renew.received"
    ABORT_RECEIVED = "abort.received"  # either engine core
    MIGRATE_RECEIVED = "migrate.received"  # decode's engine core, as the next; from there on as prefill's from KV_BEGIN
    MIGRATE_STOPPED = "migrate.stopped"  # the request draws no more tokens here
    MIGRATE_SENT = "migrate.sent"  # gateway, as all up to release.sent
    RENEW_SENT = "renew.sent"
    CANCEL_SENT = "cancel.sent"
    RELEASE_SENT = "release.sent"
    DIRECTORY_READ = "directory.read"
    DIRECTORY_WRITTEN = "directory.written"  # either service


class Action(enum.StrEnum):
    """What happens there."""

    KILL = "kill"  # SIGKILL to this process
    STOP = "stop"  # SIGSTOP to it; on it goes with SIGCONT
    DELAY = "delay"  # sleeps for `seconds`
    DROP = "drop"  # this and the next two where a message is carried
    DUPLICATE = "duplicate"
    CORRUPT = "corrupt"  # flips one bit


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One action at one point: the `nth` time that it is reached, or with a chance each time."""

    point: Point
    action: Action
    nth: int = 0  # from 1; 0: by `chance`
    chance: float = 0.0
    seconds: float = 0.0
    mark: str = ""  # a file to be made just before, for a test that waits for it


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that is to go wrong in a process."""

    only_for_tests: Literal["yes"]
    rules: tuple[Rule, ...]
    seed: int = 0


class Faults(Protocol):
    """Whoever decides what happens at the points."""

    def reach(self, point: Point) -> None:
        """Comes back, late perhaps, or not at all."""

    def messages(self, point: Point, payload: bytes) -> list[bytes]:
        """What becomes of a message."""


class PlannedFaults:
    """Faults of a real process, by its plan."""

    def __init__(self, plan: Plan) -> None:
        self._rules = plan.rules
        self._random = random.Random(plan.seed)
        self._reached: Counter[Point] = Counter()

    def reach(self, point: Point) -> None:
        for rule in self._due(point):
            self._mark(rule)
            if rule.action is Action.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            elif rule.action is Action.STOP:
                os.kill(os.getpid(), signal.SIGSTOP)
            elif rule.action is Action.DELAY:
                time.sleep(rule.seconds)

    def messages(self, point: Point, payload: bytes) -> list[bytes]:
        found = [payload]
        for rule in self._due(point):
            self._mark(rule)
            if rule.action is Action.DROP:
                found = []
            elif rule.action is Action.DUPLICATE:
                found *= 2
            elif rule.action is Action.CORRUPT:
                bit = self._random.randrange(8 * len(payload))
                found = [flip(message, bit) for message in found]
        return found

    def _due(self, point: Point) -> list[Rule]:
        self._reached[point] += 1
        return [
            rule
            for rule in self._rules
            if rule.point is point
            and (rule.nth == self._reached[point] if rule.nth else self._random.random() < rule.chance)
        ]

    def _mark(self, rule: Rule) -> None:
        logger.warning("injected fault: %s at %s", rule.action, rule.point)
        if rule.mark:
            Path(rule.mark).touch()


def flip(payload: bytes, bit: int) -> bytes:
    """`payload` with one bit the other way round."""
    changed = bytearray(payload)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def from_environment(environ: Mapping[str, str]) -> PlannedFaults | None:
    """None where the variable is not set.

    Raises:
        ValueError: it is no plan.
    """
    text = environ.get(VARIABLE)
    if text is None:
        return None
    try:
        plan = msgspec.json.decode(text, type=Plan)
    except msgspec.DecodeError as error:
        raise ValueError(
            f'{VARIABLE}: got {text[:200]!r} ({error}), expected a plan with "only_for_tests": "yes"; it makes this '
            "process fail on purpose, so unset it unless this is a test"
        ) from error
    logger.warning("%s is set: this process will fail on purpose", VARIABLE)
    return PlannedFaults(plan)


def _armed_at_start() -> Faults | None:
    try:
        return from_environment(os.environ)
    except ValueError as error:
        sys.exit(f"error: {error}")


_faults: Faults | None = _armed_at_start()


def install(faults: Faults | None) -> None:
    """For tests: what happens at this process's points from now on; None: nothing."""
    global _faults
    _faults = faults


def at(point: Point) -> None:
    """The process has come to this point."""
    if _faults is not None:
        _faults.reach(point)


def messages(point: Point, payload: bytes) -> list[bytes]:
    """What arrives of a message at this point."""
    if _faults is None:
        return [payload]
    _faults.reach(point)
    return _faults.messages(point, payload)
