"""One run's whole input as plain data: what is there, what clients ask, what goes wrong; drawn from a seed."""

import enum
import random
from typing import Any

import msgspec

from baton.faults import Point
from tests.simulation.model import MAX_LEN, VOCAB


class Happening(enum.StrEnum):
    """What happens at a time; `target` is a worker."""

    KILL = "kill"  # and a restart under the same name and address `seconds` later
    STOP = "stop"  # SIGSTOP, and SIGCONT `seconds` later
    MOVE = "move"  # a decode worker wants to hand on what it runs
    DRAIN = "drain"  # and the worker's end `seconds` later, and a restart
    GATEWAY_KILL = "gateway_kill"
    REDIS_DOWN = "redis_down"  # for `seconds`
    REDIS_FLUSH = "redis_flush"


class Ask(msgspec.Struct, frozen=True):
    """One client's request."""

    at_s: float
    prompt: tuple[int, ...]
    max_tokens: int
    seed: int
    stop_token_ids: tuple[int, ...] = ()
    deadline_s: float | None = None
    leaves_after: int | None = None  # tokens; the client is gone then
    stops_after: int | None = None  # tokens; a stop string is found then


class Event(msgspec.Struct, frozen=True):
    """Something that happens at a time."""

    at_s: float
    what: Happening
    target: str = ""
    seconds: float = 0.0


class PointFault(msgspec.Struct, frozen=True):
    """Something that happens the `nth` time that a point is reached: a message, a KV write, a point of an engine."""

    point: str
    nth: int
    action: str
    seconds: float = 0.0


class Schedule(msgspec.Struct, frozen=True):
    """A run."""

    seed: int  # of latencies and step times
    prefill: int
    decode: int
    prefill_blocks: int
    decode_blocks: int
    asks: tuple[Ask, ...]
    events: tuple[Event, ...] = ()
    faults: tuple[PointFault, ...] = ()
    overlap: bool = False  # decode plans and launches a step while the one before runs
    skews_s: tuple[float, ...] = ()  # of the workers' clocks, in the order of their names


UNARY = ("Reserve", "Renew", "Release", "CancelPrefill", "ExtendLease")
_REQUESTS = (*(f"{name}.request" for name in UNARY), "Prefill.request", "Decode.request")
_RESPONSES = (
    *(f"{name}.response" for name in UNARY),
    "Prefill.first_token",
    "Prefill.done",
    "Decode.admitted",
    "Decode.tokens",
    "Decode.finished",
)
# Lost: until the connection is given up. Twice: on its way twice, to be answered once.
_REQUEST_ACTIONS = ("delay", "delay", "break", "lose", "twice")
_RESPONSE_ACTIONS = ("delay", "delay", "break", "lose")
_WRITE_ACTIONS = ("fail", "tear", "late", "hold", "corrupt", "lose_notification", "repeat_notification")
_ENGINE_POINTS = (
    Point.RESERVE_RECEIVED,
    Point.PREFILL_ACCEPTED,
    Point.FIRST_TOKEN_SENT,
    Point.KV_BEGIN,
    Point.KV_POST,
    Point.KV_POSTED,
    Point.KV_WRITE_DONE,
    Point.KV_END,
    Point.KV_READY_RECEIVED,
    Point.KV_VERIFIED,
    Point.ADMITTED,
    Point.TOKENS_SENT,
    Point.RELEASE_RECEIVED,
    Point.RENEW_RECEIVED,
    Point.ABORT_RECEIVED,
)
_READY_ACTIONS = ("drop", "duplicate", "corrupt", "later")
MAX_SKEW_S = 0.1  # either way


def draw(seed: int) -> Schedule:
    """The schedule of a seed."""
    rng = random.Random(seed)
    prefill, decode = rng.choice(((1, 1), (2, 1), (1, 2), (2, 2), (2, 2)))
    names = worker_names(prefill, decode)
    asks = tuple(_ask(rng) for _ in range(rng.choice((1, 1, 2, 3, 4, 5))))
    events = tuple(_event(rng, names) for _ in range(rng.choice((0, 0, 1, 1, 2))))
    faults = tuple(_fault(rng) for _ in range(rng.choice((0, 1, 1, 2, 3))))
    skews = tuple(round(rng.uniform(-MAX_SKEW_S, MAX_SKEW_S), 3) for _ in names)
    sizes = rng.choice((14, 20, 30)), rng.choice((14, 20, 30))
    return Schedule(seed, prefill, decode, *sizes, asks, events, faults, rng.random() < 0.5, skews)


def worker_names(prefill: int, decode: int) -> list[str]:
    """As the world calls them."""
    return [*(f"prefill-{n}" for n in range(prefill)), *(f"decode-{n}" for n in range(decode))]


def _ask(rng: random.Random) -> Ask:
    shared, own = rng.randrange(25), rng.randrange(1, 20)
    family = rng.randrange(2) + 1
    prompt = (*([family] * shared), *(rng.randrange(VOCAB) for _ in range(own)))
    more: dict[str, Any] = {}
    kind = rng.random()
    if kind < 0.1:
        more["deadline_s"] = round(rng.uniform(0.005, 1.5), 3)
    elif kind < 0.25:
        more["leaves_after"] = rng.randrange(6)
    elif kind < 0.35:
        more["stops_after"] = rng.randrange(1, 6)
    stops = tuple(rng.sample(range(VOCAB), 3)) if rng.random() < 0.3 else ()
    most = min(rng.choice((1, 2, 6, 12, 30, 40)), MAX_LEN - len(prompt) - 1)
    # Some come when leases and quarantines of the others are over.
    at_s = rng.uniform(0, 0.3) if rng.random() < 0.75 else rng.uniform(3.0, 9.0)
    return Ask(round(at_s, 4), prompt, most, rng.randrange(3), stops, **more)


def _event(rng: random.Random, names: list[str]) -> Event:
    kinds = (*([Happening.KILL] * 4), *([Happening.STOP] * 4), Happening.MOVE, Happening.MOVE, *Happening)
    what = rng.choice(kinds)
    if what is Happening.MOVE:
        names = [name for name in names if name.startswith("decode")]
    seconds = rng.choice((0.05, 0.5, 2.0, 4.0, 8.0, 20.0))
    return Event(round(rng.uniform(0, 0.5), 4), what, rng.choice(names), seconds)


def _fault(rng: random.Random) -> PointFault:
    kind = rng.random()
    seconds = rng.choice((0.005, 0.05, 0.5, 2.0, 6.0))
    nth = rng.choice((1, 1, 1, 2, 2, 3, 5, 9))
    if kind < 0.3:
        return PointFault(rng.choice(_REQUESTS), nth, rng.choice(_REQUEST_ACTIONS), seconds)
    if kind < 0.5:
        return PointFault(rng.choice(_RESPONSES), nth, rng.choice(_RESPONSE_ACTIONS), seconds)
    if kind < 0.75:
        return PointFault("kv.write", nth, rng.choice(_WRITE_ACTIONS), seconds)
    if kind < 0.92:
        action = rng.choice(("kill", "stop"))
        return PointFault(rng.choice(_ENGINE_POINTS).value, nth, action, rng.choice((seconds, 8.0)))
    return PointFault(Point.KV_READY_RECEIVED.value, nth, rng.choice(_READY_ACTIONS), seconds)
