"""Between the protocol's messages and the types of `baton.types`."""

import hashlib
from collections.abc import Sequence

from google.protobuf.message import DecodeError

from baton.errors import invalid
from baton.rpc import kv_pb2, sampling_pb2, worker_pb2
from baton.structured import GrammarKind, StructuredOutput
from baton.types import (
    ChunkDigest,
    FinishReason,
    Grant,
    KvEndpoint,
    KvLayout,
    KvReady,
    SamplingParams,
    TokenLogprobs,
    TransferStats,
    WorkerRef,
)

_FINISH_TO_PB = {
    None: sampling_pb2.FINISH_REASON_UNSPECIFIED,
    FinishReason.STOP: sampling_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: sampling_pb2.FINISH_REASON_LENGTH,
}
_CHECKSUM_BYTES = 8
_FINISH_FROM_PB = {pb: reason for reason, pb in _FINISH_TO_PB.items()}


def finish_to_pb(reason: FinishReason | None) -> sampling_pb2.FinishReason:
    """None is UNSPECIFIED: still running."""
    return _FINISH_TO_PB[reason]


def finish_from_pb(reason: sampling_pb2.FinishReason) -> FinishReason | None:
    """UNSPECIFIED is None: still running."""
    return _FINISH_FROM_PB[reason]


def sampling_to_pb(params: SamplingParams) -> sampling_pb2.SamplingParams:
    """Every field set, since all defaults are decided by now; the worker-side message carries no stop strings."""
    return sampling_pb2.SamplingParams(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        logit_bias=params.logit_bias,
        seed=params.seed,
        max_tokens=params.max_tokens,
        min_tokens=params.min_tokens,
        stop_token_ids=params.stop_token_ids,
        logprobs=params.num_logprobs,
        bad_word_token_ids=[sampling_pb2.TokenSequence(token_ids=word) for word in params.bad_words],
        allowed_token_ids=params.allowed_token_ids,
        prompt_logprobs=params.num_prompt_logprobs,
        structured=structured_to_pb(params.structured) if params.structured else None,
    )


def sampling_from_pb(pb: sampling_pb2.SamplingParams) -> SamplingParams:
    """The inverse of `sampling_to_pb`; an unset field takes the default of `SamplingParams`.

    Raises:
        BatonError: as `structured_from_pb`.
    """
    optional = {
        name: getattr(pb, name)
        for name in (
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
            "seed",
            "max_tokens",
        )
        if pb.HasField(name)
    }
    return SamplingParams(
        **optional,
        logit_bias=dict(pb.logit_bias),
        min_tokens=pb.min_tokens,
        stop_token_ids=tuple(pb.stop_token_ids),
        num_logprobs=pb.logprobs if pb.HasField("logprobs") else None,
        bad_words=tuple(tuple(word.token_ids) for word in pb.bad_word_token_ids),
        allowed_token_ids=tuple(pb.allowed_token_ids),
        num_prompt_logprobs=pb.prompt_logprobs if pb.HasField("prompt_logprobs") else None,
        structured=structured_from_pb(pb.structured) if pb.HasField("structured") else None,
    )


def structured_to_pb(structured: StructuredOutput) -> sampling_pb2.StructuredOutput:
    """The kind's own field."""
    pb = sampling_pb2.StructuredOutput()
    if structured.kind is GrammarKind.JSON_OBJECT:
        pb.json_object = True
    elif structured.kind is GrammarKind.CHOICE:
        pb.choice.texts.extend(structured.choices)
    else:
        setattr(pb, structured.kind.value, structured.text)
    return pb


def structured_from_pb(pb: sampling_pb2.StructuredOutput) -> StructuredOutput:
    """The inverse of `structured_to_pb`.

    Raises:
        BatonError: INVALID_ARGUMENT when no kind is set.
    """
    field = pb.WhichOneof("kind")
    if field is None or (field == "json_object" and not pb.json_object):
        kinds = ", ".join(kind.value for kind in GrammarKind)
        raise invalid(f"structured: got none of its kinds, expected exactly one of {kinds}; set one or drop structured")
    kind = GrammarKind(field)
    if kind is GrammarKind.JSON_OBJECT:
        return StructuredOutput(kind)
    if kind is GrammarKind.CHOICE:
        return StructuredOutput(kind, choices=tuple(pb.choice.texts))
    return StructuredOutput(kind, getattr(pb, field))


def logprobs_to_pb(logprobs: TokenLogprobs) -> sampling_pb2.TokenLogprobs:
    """One output position."""
    return sampling_pb2.TokenLogprobs(
        sampled=sampling_pb2.Logprob(token_id=logprobs.token_id, logprob=logprobs.logprob),
        top=[sampling_pb2.Logprob(token_id=token, logprob=value) for token, value in logprobs.top],
    )


def prompt_logprobs_to_pb(position: int, logprobs: Sequence[TokenLogprobs]) -> worker_pb2.PromptLogprobs:
    """Of consecutive prompt positions from `position` on."""
    return worker_pb2.PromptLogprobs(position=position, logprobs=[logprobs_to_pb(told) for told in logprobs])


def layout_to_pb(layout: KvLayout) -> kv_pb2.KvLayout:
    """Field by field."""
    return kv_pb2.KvLayout(
        version=layout.version,
        num_layers=layout.num_layers,
        num_kv_heads=layout.num_kv_heads,
        head_dim=layout.head_dim,
        block_size=layout.block_size,
        dtype=layout.dtype,
        order=layout.order,
        tp_rank=layout.tp_rank,
        tp_size=layout.tp_size,
        model_fingerprint=layout.model_fingerprint,
        rope_variant=layout.rope_variant,
    )


def layout_from_pb(pb: kv_pb2.KvLayout) -> KvLayout:
    """Field by field."""
    return KvLayout(
        version=pb.version,
        num_layers=pb.num_layers,
        num_kv_heads=pb.num_kv_heads,
        head_dim=pb.head_dim,
        block_size=pb.block_size,
        dtype=pb.dtype,
        order=pb.order,
        tp_rank=pb.tp_rank,
        tp_size=pb.tp_size,
        model_fingerprint=pb.model_fingerprint,
        rope_variant=pb.rope_variant,
    )


def worker_to_pb(worker: WorkerRef) -> kv_pb2.WorkerRef:
    """Field by field."""
    return kv_pb2.WorkerRef(name=worker.name, incarnation=worker.incarnation)


def worker_from_pb(pb: kv_pb2.WorkerRef) -> WorkerRef:
    """Field by field."""
    return WorkerRef(name=pb.name, incarnation=pb.incarnation)


def grant_to_pb(grant: Grant) -> kv_pb2.Grant:
    """Field by field."""
    return kv_pb2.Grant(
        grant_id=grant.grant_id,
        request_id=grant.request_id,
        decode=worker_to_pb(grant.decode),
        epoch=grant.epoch,
        first_block=grant.first_block,
        block_ids=grant.block_ids,
        layout=layout_to_pb(grant.layout),
        endpoint=kv_pb2.KvEndpoint(connector=grant.endpoint.connector, metadata=grant.endpoint.metadata),
        lease_deadline_unix_ns=grant.lease_deadline_unix_ns,
    )


def grant_from_pb(pb: kv_pb2.Grant) -> Grant:
    """Field by field."""
    return Grant(
        grant_id=pb.grant_id,
        request_id=pb.request_id,
        decode=worker_from_pb(pb.decode),
        epoch=pb.epoch,
        first_block=pb.first_block,
        block_ids=tuple(pb.block_ids),
        layout=layout_from_pb(pb.layout),
        endpoint=KvEndpoint(connector=pb.endpoint.connector, metadata=pb.endpoint.metadata),
        lease_deadline_unix_ns=pb.lease_deadline_unix_ns,
    )


def encode_kv_ready(ready: KvReady) -> bytes:
    """The payload of a KV write's notification, behind a checksum: the first token in it is part of the answer."""
    message = kv_pb2.KvReady(
        grant_id=ready.grant_id,
        request_id=ready.request_id,
        epoch=ready.epoch,
        decode_incarnation=ready.decode_incarnation,
        prefill=worker_to_pb(ready.prefill),
        digests=[
            kv_pb2.ChunkDigest(start_token=d.start_token, num_tokens=d.num_tokens, digest=d.digest)
            for d in ready.digests
        ],
        first_token=ready.first_token,
        sampler_position=ready.sampler_position,
        sent_unix_ns=ready.sent_unix_ns,
        drawn_token_ids=ready.drawn_tokens,
    ).SerializeToString()
    return _checksum(message) + message


def _checksum(message: bytes) -> bytes:
    return hashlib.blake2b(message, digest_size=_CHECKSUM_BYTES).digest()


def decode_kv_ready(payload: bytes) -> KvReady:
    """Raises `google.protobuf.message.DecodeError` when `payload` is no KvReady, or not as it was sent."""
    checksum, message = payload[:_CHECKSUM_BYTES], payload[_CHECKSUM_BYTES:]
    if checksum != _checksum(message):
        raise DecodeError("its checksum does not fit")
    pb = kv_pb2.KvReady.FromString(message)
    return KvReady(
        grant_id=pb.grant_id,
        request_id=pb.request_id,
        epoch=pb.epoch,
        decode_incarnation=pb.decode_incarnation,
        prefill=worker_from_pb(pb.prefill),
        digests=tuple(ChunkDigest(d.start_token, d.num_tokens, d.digest) for d in pb.digests),
        first_token=pb.first_token,
        sampler_position=pb.sampler_position,
        sent_unix_ns=pb.sent_unix_ns,
        drawn_tokens=tuple(pb.drawn_token_ids),
    )


def transfer_to_pb(stats: TransferStats) -> worker_pb2.TransferStats:
    """Field by field."""
    return worker_pb2.TransferStats(
        blocks=stats.blocks,
        bytes=stats.bytes,
        writes=stats.writes,
        post_us=stats.post_us,
        transfer_us=stats.transfer_us,
        exposed_us=stats.exposed_us,
    )
