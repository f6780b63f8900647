"""The vocabulary that all processes share: plain frozen values, msgpack-coded between a service and its engine core."""

import enum

import msgspec

from baton.structured import StructuredOutput


class FinishReason(enum.StrEnum):
    """Why a request ended well."""

    STOP = "stop"  # end of sequence or a stop token id
    LENGTH = "length"  # max_tokens or the context length


PRIORITIES = range(-100, 101)  # of requests; lower is earlier


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a request's tokens are chosen; validated by the gateway, so every field is in range here.

    `seed` with the output position determines the random draw of each token. `stop_token_ids` holds the model's
    end-of-sequence ids too, unless `ignore_eos` was asked for. Stop strings are the gateway's business.
    """

    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0: all tokens
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    seed: int = 0
    max_tokens: int = 16
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    num_logprobs: int | None = None  # None: none wanted; 0: the sampled token's only
    bad_words: tuple[tuple[int, ...], ...] = ()  # token sequences that the output must not contain
    allowed_token_ids: tuple[int, ...] = ()  # (): all
    num_prompt_logprobs: int | None = None  # as `num_logprobs`, for each prompt token but the first
    structured: StructuredOutput | None = None  # None: free text

    @property
    def penalized(self) -> bool:
        """Whether tokens so far change how likely the next ones are."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1)


class TokenLogprobs(msgspec.Struct, frozen=True):
    """Natural log-probabilities at one position: the token's that is there and the best alternatives', best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class WorkerRef(msgspec.Struct, frozen=True):
    """One life of one worker: a restart under the same name is a new incarnation."""

    name: str
    incarnation: str


class KvLayout(msgspec.Struct, frozen=True):
    """The shape of one worker's KV pool; versioned, neutral of device and framework."""

    num_layers: int
    num_kv_heads: int  # of the whole model
    head_dim: int
    block_size: int  # tokens
    dtype: str  # "float32", "float16" or "bfloat16"
    model_fingerprint: str
    order: str = "head,layer,kv,token,dim"
    tp_rank: int = 0
    tp_size: int = 1
    version: int = 1
    rope_variant: str = ""  # which rotary embedding, of a model that has several by the length served

    @property
    def block_bytes(self) -> int:
        """Bytes of one block: all layers and this rank's heads, keys and values."""
        item_bytes = {"float32": 4, "float16": 2, "bfloat16": 2}[self.dtype]
        heads = self.num_kv_heads // self.tp_size
        return heads * self.num_layers * 2 * self.block_size * self.head_dim * item_bytes


class KvEndpoint(msgspec.Struct, frozen=True):
    """How to reach a worker's KV pool: the connector's name and metadata that this connector can read."""

    connector: str
    metadata: bytes


class Grant(msgspec.Struct, frozen=True):
    """Decode's promise of a place to land for blocks `first_block`, `first_block + 1`, ... of a prompt."""

    grant_id: str
    request_id: str
    decode: WorkerRef
    epoch: int
    first_block: int
    block_ids: tuple[int, ...]
    layout: KvLayout
    endpoint: KvEndpoint
    lease_deadline_unix_ns: int


class ChunkDigest(msgspec.Struct, frozen=True):
    """The 64-bit digest of the KV of prompt tokens [start_token, start_token + num_tokens)."""

    start_token: int
    num_tokens: int
    digest: int


class KvReady(msgspec.Struct, frozen=True):
    """The sender's word that all KV of a grant is written; rides on the notification of the last write."""

    grant_id: str
    request_id: str
    epoch: int
    decode_incarnation: str
    prefill: WorkerRef  # or the decode worker that hands a running request on
    digests: tuple[ChunkDigest, ...]
    first_token: int
    sampler_position: int
    sent_unix_ns: int
    drawn_tokens: tuple[int, ...] = ()  # output since the reservation and before `first_token`; its KV is written too


class TransferStats(msgspec.Struct, frozen=True):
    """What one request's hand-over cost on the prefill side; times in microseconds."""

    blocks: int = 0
    bytes: int = 0
    writes: int = 0
    post_us: int = 0
    transfer_us: int = 0
    exposed_us: int = 0


class BlockStats(msgspec.Struct, frozen=True):
    """Blocks of a pool by state; the four states add up to `total`."""

    total: int
    free: int
    cached: int
    active: int
    quarantined: int


class FenceCounts(msgspec.Struct, frozen=True):
    """Quarantines of a pool from its start on, and how they ended; `held` is of now."""

    begun: int = 0
    confirmed: int = 0  # the writer has said that it stopped
    expired: int = 0  # its fence was over
    held: int = 0  # the fence is over, but a tether says that the writer still exists


class WriteCounts(msgspec.Struct, frozen=True):
    """KV writes that have ended, from an engine core's start on; the sums are over failed ones too."""

    done: int = 0
    failed: int = 0
    blocks: int = 0
    bytes: int = 0
    us: int = 0  # sum over writes from post to end


class Distribution(msgspec.Struct, frozen=True):
    """How many values were at most each bound and above the one before; the last count is of those above all bounds.

    The bounds are agreed on elsewhere (baton/telemetry/buckets.py). No counts: nobody has counted.
    """

    counts: tuple[int, ...] = ()
    total: float = 0.0


class EngineStats(msgspec.Struct, frozen=True):
    """A snapshot of one engine core."""

    blocks: BlockStats
    running: int = 0
    waiting: int = 0
    grants: int = 0
    steps: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    digest_mismatches: int = 0
    swap_preemptions: int = 0
    swap_blocks_used: int = 0
    fences: FenceCounts = FenceCounts()
    writes: WriteCounts = WriteCounts()
    step_seconds: Distribution = Distribution()
    step_tokens: Distribution = Distribution()
    step_sequences: Distribution = Distribution()


class Role(enum.StrEnum):
    """What a worker does."""

    PREFILL = "prefill"
    DECODE = "decode"
    AGGREGATED = "aggregated"  # prefills and decodes its own requests
