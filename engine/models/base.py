"""The model seam: token ids and positions in, hidden states and logits out; KV goes to the pool on the way."""

from abc import ABC, abstractmethod

from torch import Tensor

from baton_kernels.attention import PagedBatch


class Model(ABC):
    """A loaded model. Called from the engine core's one thread, in inference mode."""

    # As in KvLayout. Names whose code it is, too: elements of a head may stand in an order of that code's own.
    kv_order = "head,layer,kv,token,dim"

    @abstractmethod
    def forward(self, token_ids: Tensor, positions: Tensor, pool: Tensor, batch: PagedBatch) -> Tensor:
        """Runs all layers over a flattened batch.

        Args:
            token_ids: [tokens] int64
            positions: [tokens] int64, of each token in its own sequence
            pool: [num_blocks, kv_heads, layers, 2, block_size, head_dim]; the new tokens' KV is written into it

        Returns:
            [tokens, hidden] for `logits`
        """

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] out of `forward` to [rows, vocab] float32."""

    def scores(self, hidden: Tensor) -> Tensor:
        """What `as_logits` makes logits of, with the largest at the same place: enough for a greedy draw, and smaller.

        Args:
            hidden: [rows, hidden] out of `forward`

        Returns:
            [rows, vocab], of any floating-point type
        """
        return self.logits(hidden)

    def as_logits(self, scores: Tensor) -> Tensor:
        """[rows, vocab] out of `scores` to float32 logits."""
        return scores
