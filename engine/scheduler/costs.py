"""What it costs to get a preempted request's KV back, from what this engine core has measured of itself."""

_KEPT = 0.9  # of older measurements' weight, at each new one


class _Rate:
    """Seconds per unit over the newest measurements, large ones counting more."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._units = 0.0

    def observe(self, units: float, seconds: float) -> None:
        self._seconds = self._seconds * _KEPT + seconds
        self._units = self._units * _KEPT + units

    @property
    def value(self) -> float | None:
        return self._seconds / self._units if self._units else None


class PreemptionCosts:
    """Recomputing costs seconds per token, swapping costs seconds per byte; both are measured, none is assumed.

    What comes back from the prefix cache costs neither, so both prices of the way back are taken times the share that
    preempted requests have lost so far.
    """

    def __init__(self, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._prompt_step_s = _Rate()  # per token, in steps that compute prompts
        self._decode_step_s = _Rate()  # per token, in steps that do not: an upper bound while there is nothing better
        self._copied_byte_s = _Rate()
        self._lost = _Rate()  # tokens lost per token preempted

    def observe_step(self, num_tokens: int, num_sequences: int, seconds: float) -> None:
        """A step took so long."""
        rate = self._prompt_step_s if num_tokens > num_sequences else self._decode_step_s
        rate.observe(num_tokens, seconds)

    def observe_copy(self, num_blocks: int, seconds: float) -> None:
        """Copying so many blocks, one way, took so long."""
        self._copied_byte_s.observe(num_blocks * self._block_bytes, seconds)

    def observe_return(self, num_tokens: int, num_lost: int) -> None:
        """Of a preempted request's `num_tokens` computed tokens, `num_lost` were not in the prefix cache any more."""
        self._lost.observe(num_tokens, num_lost)

    def prefers_swap(self, num_tokens: int, num_blocks: int) -> bool:
        """Whether to copy `num_blocks` blocks out and back rather than to compute their `num_tokens` tokens again."""
        copy_s = self._copied_byte_s.value
        if not num_tokens or copy_s is None:
            return False
        compute_s = self._prompt_step_s.value
        compute_s = self._decode_step_s.value if compute_s is None else compute_s
        if compute_s is None:
            return True  # KV that came from elsewhere, before the first step here: what it is worth is unknown
        lost = 1.0 if self._lost.value is None else self._lost.value
        return num_blocks * self._block_bytes * copy_s * (1 + lost) < num_tokens * lost * compute_s
