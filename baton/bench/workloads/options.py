"""Which workload is asked for, and the making of it."""

from pathlib import Path

import msgspec

from baton.bench.workloads.base import Workload
from baton.bench.workloads.lengths import Lengths
from baton.bench.workloads.synthetic import Conversations, LongDocuments, RandomPrompts, SharedPrefixes
from baton.bench.workloads.tokens import LOWEST_TOKEN, TokenSource
from baton.bench.workloads.trace_files import read_csv, read_mooncake
from baton.bench.workloads.traces import Scale, Trace
from baton.errors import invalid

WORKLOADS = ("random", "shared-prefix", "multi-turn", "long-document", "trace")


class WorkloadOptions(msgspec.Struct, frozen=True):
    """All there is to know to make the workload again, in another process too. Lengths are in tokens."""

    kind: str = "random"
    seed: int = 0
    vocab_size: int = 30_000
    input_tokens: int = 512
    output_tokens: int = 128
    length_spread: float = 0.0
    prefix_tokens: int = 512  # shared-prefix; multi-turn: the system prompt
    num_prefixes: int = 8
    num_turns: int = 4
    think_s: float = 0.0
    document_tokens: int = 8192
    num_questions: int = 4
    trace: str = ""  # a file
    scale: Scale = Scale()


def make_workload(options: WorkloadOptions, source: TokenSource | None = None) -> Workload:
    """`source`: of something that stands for tokens, as a simulator has.

    Raises:
    BatonError: INVALID_ARGUMENT for options that make no workload, or a trace that cannot be read.
    """
    _check(options)
    source = source or TokenSource(options.seed, options.vocab_size)
    inputs, outputs = (Lengths(mean, options.length_spread) for mean in (options.input_tokens, options.output_tokens))
    if options.kind == "random":
        return RandomPrompts(source, inputs, outputs)
    if options.kind == "shared-prefix":
        return SharedPrefixes(source, inputs, outputs, options.num_prefixes, options.prefix_tokens)
    if options.kind == "multi-turn":
        return Conversations(source, inputs, outputs, options.num_turns, options.think_s, options.prefix_tokens)
    if options.kind == "long-document":
        return LongDocuments(source, inputs, outputs, options.document_tokens, options.num_questions)
    path = Path(options.trace)
    lines = read_csv(path) if path.suffix == ".csv" else read_mooncake(path)
    return Trace(source, lines, options.scale)


def _check(options: WorkloadOptions) -> None:
    if options.kind not in WORKLOADS:
        raise invalid(f"got --workload {options.kind}, expected {', '.join(WORKLOADS)}")
    if (options.kind == "trace") != bool(options.trace):
        raise invalid(
            f"got --workload {options.kind} with --trace {options.trace or 'not given'}, expected --workload trace and "
            "--trace FILE together"
        )
    if options.vocab_size <= LOWEST_TOKEN:
        raise invalid(
            f"got --vocab-size {options.vocab_size}, expected more than {LOWEST_TOKEN}: lower ids are not used"
        )
    if not 0 <= options.length_spread <= 1:
        raise invalid(f"got --length-spread {options.length_spread:g}, expected a share of the mean in [0, 1]")
    for flag, value in (("--speed", options.scale.speed), ("--length-scale", options.scale.lengths)):
        if not value > 0:
            raise invalid(f"got {flag} {value:g}, expected a factor above 0")
    counts = {
        "--input-tokens": options.input_tokens,
        "--output-tokens": options.output_tokens,
        "--prefix-tokens": options.prefix_tokens,
        "--prefixes": options.num_prefixes,
        "--turns": options.num_turns,
        "--document-tokens": options.document_tokens,
        "--questions": options.num_questions,
    }
    for flag, number in counts.items():
        if number < 1:
            raise invalid(f"got {flag} {number}, expected at least 1")
    if options.seed < 0 or not options.think_s >= 0:
        raise invalid(f"got --seed {options.seed} and --think-s {options.think_s:g}, expected neither below 0")
