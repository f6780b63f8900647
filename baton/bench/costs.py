"""What a step must compute and read at least, from the model's shape: the basis of floors.

Counted are products with weights and attention's two products, as 2 operations for a multiply-add. Read are all weights
once a step (of an embedding the rows in use, which is nothing beside them) and the cached keys and values.
"""

import msgspec

from baton.model_spec import ModelSpec


class Cost(msgspec.Struct, frozen=True):
    """Of one step or of several."""

    flop: float
    read_bytes: float

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.flop + other.flop, self.read_bytes + other.read_bytes)


class Ceiling(msgspec.Struct, frozen=True):
    """What a device was measured to do at most."""

    read_bytes_s: float
    flop_s: float

    def floor_s(self, cost: Cost) -> float:
        """The roofline: the longer of computing and reading (Williams et al., 2009)."""
        return max(cost.flop / self.flop_s, cost.read_bytes / self.read_bytes_s)


# Measured on the device by reading and by products of large matrices; by the name that the driver gives.
CEILINGS = {"NVIDIA H200": Ceiling(read_bytes_s=4.20e12, flop_s=792e12)}


def matrix_weights(spec: ModelSpec) -> int:
    """Weights that each token is multiplied with, without the output head; of dense models."""
    attention = spec.hidden_size * spec.head_dim * (2 * spec.num_heads + 2 * spec.num_kv_heads)
    return spec.num_layers * (attention + 3 * spec.hidden_size * spec.intermediate_size)


def head_weights(spec: ModelSpec) -> int:
    """Of the output head, used for each token that is drawn."""
    return spec.hidden_size * spec.vocab_size


def kv_bytes_per_token(spec: ModelSpec, itemsize: int) -> int:
    """In all layers."""
    return spec.num_layers * spec.num_kv_heads * spec.head_dim * 2 * itemsize


def decode_cost(spec: ModelSpec, batch: int, context: int, itemsize: int = 2) -> Cost:
    """One step: a new token for each of `batch` sequences of `context` tokens."""
    weights = matrix_weights(spec) + head_weights(spec)
    attention = 4 * batch * context * spec.num_heads * spec.head_dim * spec.num_layers
    read = weights * itemsize + batch * context * kv_bytes_per_token(spec, itemsize)
    return Cost(2.0 * weights * batch + attention, float(read))


def prefill_cost(spec: ModelSpec, num_tokens: int, itemsize: int = 2) -> Cost:
    """A whole prompt and its first output token; attention is causal."""
    attention = 2 * num_tokens * (num_tokens + 1) * spec.num_heads * spec.head_dim * spec.num_layers
    flop = 2.0 * matrix_weights(spec) * num_tokens + 2.0 * head_weights(spec) + attention
    return Cost(flop, float((matrix_weights(spec) + head_weights(spec)) * itemsize))
