"""What a service and its engine core say to each other: msgpack-coded structs over one Unix socket, in batches.

Every request is named by (request_id, epoch); the epoch names the attempt. The core ends each `AddLocal`, `AddPrefill`
and granted `Reserve` with exactly one of `Finished`, `Moved`, `Failed` or `Aborted`; a granted reservation that is
released or aborted, before its KV has come or after, ends with `Aborted`. Times are unix nanoseconds.
"""

import msgspec

from baton.errors import ErrorCode, Reason
from baton.types import EngineStats, FinishReason, Grant, KvLayout, SamplingParams, TokenLogprobs, TransferStats


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of all messages; tagged by class name."""


# --- from the service to the core ---


class AddLocal(Message, frozen=True, tag=True):
    """Prefill and decode a prompt on this worker."""

    request_id: str
    epoch: int
    prompt: tuple[int, ...]
    sampling: SamplingParams
    output: tuple[int, ...] = ()  # replayed: what earlier attempts have delivered; the next token comes behind it
    priority: int = 0
    fork_of: tuple[str, int] | None = None  # (request id, epoch) of one that has, or will have, this prompt's KV here


class AddPrefill(Message, frozen=True, tag=True):
    """Compute a prompt's KV, write it where `grant` says, sample the first token."""

    request_id: str
    epoch: int
    prompt: tuple[int, ...]
    sampling: SamplingParams
    grant: Grant
    output: tuple[int, ...] = ()  # as in AddLocal
    priority: int = 0


class Reserve(Message, frozen=True, tag=True):
    """Allocate blocks for a prompt that another worker will prefill; answered by `Granted` or `Refused`."""

    request_id: str
    epoch: int
    prompt: tuple[int, ...]
    sampling: SamplingParams
    output: tuple[int, ...] = ()  # as in AddLocal
    priority: int = 0
    num_extra_tokens: int = 0  # room for so many more, which a running request may draw until it is handed on


class Release(Message, frozen=True, tag=True):
    """Give a grant back, waiting or running, known or not. `fenced`: no remote write can touch its blocks any more."""

    grant_id: str
    fenced: bool


class RenewLease(Message, frozen=True, tag=True):
    """Move the end of an open grant's lease to a whole lease from now; answered by `LeaseRenewed`."""

    call_id: int
    grant_id: str


class ExtendLease(Message, frozen=True, tag=True):
    """A hand-over's lease ends later, as decode has promised; answered by `LeaseExtended`."""

    call_id: int
    request_id: str
    epoch: int
    lease_deadline_unix_ns: int


class Migrate(Message, frozen=True, tag=True):
    """Hand a running request on to the worker that has granted room for it; answered by `MigrateEnded`."""

    call_id: int
    request_id: str
    epoch: int
    grant: Grant
    num_reserved_tokens: int  # prompt and output that the grant was reserved with


class Abort(Message, frozen=True, tag=True):
    """Stop an attempt; answered by `Aborted`, also when it is unknown or already over."""

    request_id: str
    epoch: int


class GetStats(Message, frozen=True, tag=True):
    """Answered by `StatsReply`. With `check`, the core checks its integrity first."""

    call_id: int
    check: bool = False


class ResetPrefixCache(Message, frozen=True, tag=True):
    """Drop cached blocks that nobody references; answered by `PrefixCacheReset`."""

    call_id: int


class Shutdown(Message, frozen=True, tag=True):
    """Abort everything, release the pool and exit 0."""


Command = (
    AddLocal
    | AddPrefill
    | Reserve
    | Release
    | RenewLease
    | ExtendLease
    | Migrate
    | Abort
    | GetStats
    | ResetPrefixCache
    | Shutdown
)


# --- from the core to the service ---


class Ready(Message, frozen=True, tag=True):
    """The model is loaded and the pool is allocated; sent once, first."""

    layout: KvLayout
    num_blocks: int
    max_model_len: int


class Granted(Message, frozen=True, tag=True):
    request_id: str
    epoch: int
    grant: Grant
    cached_tokens: int


class Refused(Message, frozen=True, tag=True):
    """A `Reserve` that found no room (RESOURCE_EXHAUSTED with a retry time) or can never fit (INVALID_ARGUMENT)."""

    request_id: str
    epoch: int
    code: ErrorCode
    message: str
    retry_after_s: float | None = None


class Admitted(Message, frozen=True, tag=True):
    """The KV behind a grant was verified and the request joined the running batch."""

    request_id: str
    epoch: int
    reserved_unix_ns: int
    kv_ready_unix_ns: int  # when prefill sent KvReady
    received_unix_ns: int  # when it was polled here
    admitted_unix_ns: int
    verify_us: int


class Tokens(Message, frozen=True, tag=True):
    """New output tokens. `output_position` counts from 0 and is that of the first token here."""

    request_id: str
    epoch: int
    output_position: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    cached_tokens: int = 0  # prompt tokens taken from this worker's prefix cache
    queue_us: int = 0  # with the first token of a prompt that was computed here: before its first step,
    compute_us: int = 0  # and from there to the token


class PromptLogprobs(Message, frozen=True, tag=True):
    """Of consecutive prompt positions, in order, each once; all before the request's first `Tokens`."""

    request_id: str
    epoch: int
    position: int  # of the first one here; 1 at first, since nothing precedes the prompt's first token
    logprobs: tuple[TokenLogprobs, ...]


class ComputeSpan(msgspec.Struct, frozen=True):
    """When one step worked on a request, and on how many of its prompt tokens."""

    start_unix_ns: int
    end_unix_ns: int
    num_tokens: int


class WriteSpan(msgspec.Struct, frozen=True):
    """One KV write."""

    posted_unix_ns: int
    done_unix_ns: int
    blocks: int
    bytes: int


class Timeline(msgspec.Struct, frozen=True):
    """A request's life on this worker as a column of moments, for its spans. 0 where it did not get that far."""

    queued_unix_ns: int
    started_unix_ns: int = 0  # first computed on, or admitted
    first_token_unix_ns: int = 0
    finished_unix_ns: int = 0
    prefill_chunks: tuple[ComputeSpan, ...] = ()
    writes: tuple[WriteSpan, ...] = ()
    preempted_unix_ns: tuple[int, ...] = ()


class Finished(Message, frozen=True, tag=True):
    """The request ended well. For `AddPrefill`: the first token ended it (`reason` set) or its KV is handed over."""

    request_id: str
    epoch: int
    reason: FinishReason | None
    timeline: Timeline
    cached_tokens: int = 0
    transfer: TransferStats | None = None


class Failed(Message, frozen=True, tag=True):
    """The request ended badly. Its blocks are released, in quarantine, or held until a write that hangs has ended."""

    request_id: str
    epoch: int
    code: ErrorCode
    message: str
    timeline: Timeline
    reason: Reason | None = None


class Aborted(Message, frozen=True, tag=True):
    """`fenced`: no write of this attempt is or will be under way, and none has failed, so none can land any more."""

    request_id: str
    epoch: int
    fenced: bool


class StatsReply(Message, frozen=True, tag=True):
    call_id: int
    stats: EngineStats
    problems: tuple[str, ...] = ()  # what check_integrity found


class LeaseRenewed(Message, frozen=True, tag=True):
    call_id: int
    lease_deadline_unix_ns: int | None  # None: no such grant is open (any more)


class LeaseExtended(Message, frozen=True, tag=True):
    call_id: int
    known: bool  # False: nothing is to be written (any more)


class Moved(Message, frozen=True, tag=True):
    """The request goes on on another worker, from `output_position` on. Nothing of it is held here any more."""

    request_id: str
    epoch: int
    output_position: int
    timeline: Timeline
    transfer: TransferStats


class MigrateEnded(Message, frozen=True, tag=True):
    """Where it was not `moved`, `problem` says why; it goes on here unless it has ended. `fenced` as in `Aborted`."""

    call_id: int
    request_id: str
    epoch: int
    moved: bool
    fenced: bool = True
    problem: str = ""


class PrefixCacheReset(Message, frozen=True, tag=True):
    call_id: int
    num_blocks: int  # dropped


class CacheChanged(Message, frozen=True, tag=True):
    """Block hashes that this worker's prefix cache gained and lost since the last one; none is in both lists."""

    stored: tuple[bytes, ...]
    removed: tuple[bytes, ...]


Reply = StatsReply | LeaseRenewed | LeaseExtended | MigrateEnded | PrefixCacheReset
Event = (
    Ready
    | Granted
    | Refused
    | Admitted
    | PromptLogprobs
    | Tokens
    | Finished
    | Moved
    | Failed
    | Aborted
    | Reply
    | CacheChanged
)
