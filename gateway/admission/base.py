"""What admission is told of a request and its client, and what it says."""

import enum
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AdmissionConfig:
    """Bounds and rates; see docs/admission.md."""

    max_queued: int = 4096  # requests that have not started, over all clients
    max_queued_per_client: int = 1024
    max_queued_tokens: int = 8_000_000  # prompt tokens of waiting requests; about 40 bytes each
    initial_per_worker: float = 64.0  # answers under way for each worker that decodes, before anything is known
    max_per_worker: float = 1024.0
    ttft_s: float = 2.0  # a first token later than this can mean that workers have too much
    max_clients: int = 4096  # whose shares are remembered while there is a queue

    def places(self, priority: int) -> int:
        """How many requests may wait when one of `priority` joins: late ones leave places to default and early ones."""
        share = 0.5 if priority > 0 else 0.9 if priority == 0 else 1.0
        return max(1, int(self.max_queued * share))


@dataclass(frozen=True, slots=True)
class Client:
    """Who shares capacity with others: an API key, or an address where there are no keys."""

    name: str
    weight: float = 1.0  # its share relative to others


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request wants."""

    prompt_tokens: int
    max_tokens: int  # of each answer
    num_answers: int = 1
    priority: int = 0  # among the client's own requests; lower is earlier
    deadline: float | None = None  # when its client gives up, on the core's clock


class State(enum.Enum):
    """From left to right, possibly leaving some out."""

    ARRIVED = "arrived"  # its prompt is not known yet
    WAITING = "waiting"
    RUNNING = "running"
    REFUSED = "refused"
    ENDED = "ended"


class Refused(enum.StrEnum):
    """Why; values of a metric's label and, in upper case, of ErrorInfo.reason."""

    QUEUE_FULL = "queue_full"
    CLIENT_QUEUE_FULL = "client_queue_full"
    DEADLINE_TOO_SHORT = "deadline_too_short"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request does not start, and when another try can make sense."""

    reason: Refused
    retry_after_s: float
    message: str


@dataclass(slots=True, eq=False)
class Entry:
    """One request; the core alone changes it."""

    client: Client
    priority: int
    sequence: int
    state: State = State.ARRIVED
    demand: Demand = Demand(0, 0)  # until it is offered
    latest_start: float | None = None  # later it cannot meet its deadline
    predicted_s: float = 0.0  # on the workers
    predicted_wait_s: float = 0.0
    offered_at: float = 0.0  # where it waits
    started_at: float = 0.0
    first_token_s: float | None = None  # after the start
    refusal: Refusal | None = None

    @property
    def slots(self) -> int:
        """Answers that workers compute side by side."""
        return self.demand.num_answers
