"""What takes time: steps by their plans, KV writes by their bytes, messages."""

from pathlib import Path

import msgspec

from baton.bench.costs import Ceiling, head_weights, kv_bytes_per_token, matrix_weights
from baton.errors import invalid
from baton.model_spec import ModelSpec
from engine.step_log import StepWork


class Floor(msgspec.Struct, frozen=True):
    """What a device takes at least for a model: `baton/bench/costs.py` as factors of what a step does."""

    flop_s: float
    read_bytes_s: float
    flop_per_token: float  # products with weights
    flop_per_drawn: float  # of the output head
    flop_per_pair: float  # attention of one token to one other
    weight_bytes: float  # read once a step
    kv_bytes_per_token: float

    def seconds(self, num_tokens: int, num_drawn: int, num_pairs: float, num_context: int) -> float:
        """The roofline of one step; `num_context` tokens of KV are read for decodes."""
        flop = num_tokens * self.flop_per_token + num_drawn * self.flop_per_drawn + num_pairs * self.flop_per_pair
        read = self.weight_bytes + num_context * self.kv_bytes_per_token
        return max(flop / self.flop_s, read / self.read_bytes_s)


def make_floor(spec: ModelSpec, ceiling: Ceiling, itemsize: int = 2) -> Floor:
    """Of a dense model on a device."""
    weights, head = matrix_weights(spec), head_weights(spec)
    return Floor(
        flop_s=ceiling.flop_s,
        read_bytes_s=ceiling.read_bytes_s,
        flop_per_token=2.0 * weights,
        flop_per_drawn=2.0 * head,
        flop_per_pair=4.0 * spec.num_heads * spec.head_dim * spec.num_layers,
        weight_bytes=float((weights + head) * itemsize),
        kv_bytes_per_token=float(kv_bytes_per_token(spec, itemsize)),
    )


class StepCosts(msgspec.Struct, frozen=True):
    """Seconds of a step. Reading the weights and computing a prompt overlap, so the longer of the two counts."""

    base_s: float  # a step of nothing but decodes, without what each of them adds
    decode_s: float  # each decode
    context_s: float  # each token that decodes attend to
    prompt_base_s: float = 0.0  # a step with prompt tokens
    prompt_s: float = 0.0  # each prompt token
    pair_s: float = 0.0  # each pair of a prompt token and a token that it attends to
    floor: Floor | None = None
    noise: tuple[float, ...] = ()  # measured over fitted, each of as many steps; (): every step takes what it should

    def seconds(self, work: StepWork) -> float:
        """From the step's launch to its tokens; what it waits for before is not in it."""
        seconds = self.base_s
        if work.num_prompt_tokens:
            prompt_s = self.prompt_base_s + work.num_prompt_tokens * self.prompt_s + work.num_pairs * self.pair_s
            seconds = max(seconds, prompt_s)
        seconds += work.num_decodes * self.decode_s + work.num_context * self.context_s
        if self.floor is None:
            return seconds
        tokens, pairs = work.num_prompt_tokens + work.num_decodes, work.num_pairs + work.num_context
        return max(seconds, self.floor.seconds(tokens, work.num_drawn, pairs, work.num_context))


class TurnCosts(msgspec.Struct, frozen=True):
    """Seconds between two steps: planning, committing, digests, messages."""

    base_s: float = 0.0
    sequence_s: float = 0.0
    sent_token_s: float = 0.0  # each token whose KV a prefill worker sends
    received_token_s: float = 0.0  # each token whose KV a decode worker verifies


class LinkCosts(msgspec.Struct, frozen=True):
    """Of KV writes: a worker's writes share its bandwidth, out and in."""

    latency_s: float
    bytes_s: float


class MessageCosts(msgspec.Struct, frozen=True):
    """Seconds on the way, one way each."""

    client_s: float = 0.0  # from client to gateway, with all that the gateway does before it routes
    call_s: float = 0.0  # from gateway to an engine core
    token_s: float = 0.0  # from an engine core to the client
    ready_s: float = 0.0  # until decode looks at a notification, when it does nothing else


class Costs(msgspec.Struct, frozen=True):
    """All that the simulator does not take from the product; a file as `baton simulate fit` writes it."""

    source: str  # what it was fitted to
    prefill: StepCosts
    decode: StepCosts
    link: LinkCosts
    prefill_turn: TurnCosts = TurnCosts()
    decode_turn: TurnCosts = TurnCosts()
    messages: MessageCosts = MessageCosts()
    overlap: bool = False  # decode steps are planned while the one before runs
    kv_bytes_per_token: float = 0.0
    kv_bytes: float = 0.0  # of one worker's pool


def read_costs(path: Path) -> Costs:
    """Raises:
    BatonError: INVALID_ARGUMENT for what is no such file.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Costs)
    except (OSError, msgspec.MsgspecError) as error:
        raise invalid(f"--costs {path}: got {error}, expected a file that `baton simulate fit` wrote") from error


def write_costs(path: Path, costs: Costs) -> None:
    """As `read_costs` reads it."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(costs), indent=2) + b"\n")
