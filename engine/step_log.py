"""A record of what an engine core does and how long it takes, for the simulator's costs: `--step-log FILE`."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from baton.errors import BatonError, ErrorCode
from engine.scheduler.base import SequencePlan


class StepWork(msgspec.Struct, frozen=True, gc=False):
    """What a step does, as far as its time depends on it."""

    num_decodes: int = 0  # sequences with one token
    num_context: int = 0  # tokens that those attend to, together
    num_prompt_tokens: int = 0
    num_pairs: float = 0.0  # of prompt tokens and what they attend to
    num_drawn: int = 0


def work_of(sequences: Iterable[SequencePlan]) -> StepWork:
    """Before `advance`: requests say what is computed so far. A chunk of one token counts as a decode."""
    decodes = context = prompt_tokens = drawn = 0
    pairs = 0.0
    for request, num_tokens, sample in sequences:
        before = request.num_computed_tokens
        drawn += sample
        if num_tokens == 1:
            decodes += 1
            context += before
        else:
            prompt_tokens += num_tokens
            pairs += num_tokens * (before + 0.5 * (num_tokens + 1))
    return StepWork(decodes, context + decodes, prompt_tokens, pairs, drawn)


class StepRecord(msgspec.Struct, frozen=True, tag="step", gc=False):
    """One step. Times are unix nanoseconds."""

    work: StepWork
    start_ns: int
    end_ns: int
    idle_before: bool  # the loop had nothing to compute before it, so how long it waited says nothing


class WriteRecord(msgspec.Struct, frozen=True, tag="write", gc=False):
    """One KV write that has ended well."""

    num_bytes: int
    transfer_us: int


class ReceivedRecord(msgspec.Struct, frozen=True, tag="received", gc=False):
    """The KV of one request, verified."""

    num_tokens: int
    verify_us: int


Record = StepRecord | WriteRecord | ReceivedRecord


class StepLog:
    """A record a line; written by the core's one thread, and to the file in large pieces."""

    def __init__(self, path: str) -> None:
        """Raises:
        BatonError: INVALID_ARGUMENT when the file cannot be written.
        """
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._file = Path(path).open("wb", buffering=1 << 16)  # noqa: SIM115 - closed by `close`
        except OSError as error:
            raise BatonError(
                ErrorCode.INVALID_ARGUMENT, f"--step-log {path}: cannot be written ({error}); name another file"
            ) from error
        self._encoder = msgspec.json.Encoder()

    def add(self, record: Record) -> None:
        """Never waits for the disk but when 64 KiB are full."""
        self._file.write(self._encoder.encode(record) + b"\n")

    def close(self) -> None:
        """Idempotent."""
        self._file.close()


def read_step_log(path: Path) -> list[Record]:
    """Raises:
    BatonError: INVALID_ARGUMENT with the number of a line that is no record, unless it is the last one, cut off.
    """
    decoder = msgspec.json.Decoder(Record)
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise BatonError(ErrorCode.INVALID_ARGUMENT, f"{path}: cannot be read ({error})") from error
    records: list[Record] = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(decoder.decode(line))
        except msgspec.MsgspecError as error:
            if number == len(lines):
                break
            raise BatonError(
                ErrorCode.INVALID_ARGUMENT,
                f"{path}, line {number}: got {line[:80]!r} ({error}), expected a line that --step-log wrote",
            ) from error
    return records
