"""A request's blocks: prefix hits at its start, growth as it advances, registration of what it has filled."""

from engine.block_pool import BlockPool
from engine.request import Request


class RequestBlocks:
    """The one place where requests and the block pool meet; used by both schedulers and by grants."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self.pool = pool
        self.block_size = block_size
        self._held_back: dict[Request, list[int]] = {}
        self.num_query_tokens = 0
        self.num_hit_tokens = 0

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def take_prefix(self, request: Request) -> None:
        """Starts a request that holds no blocks with its longest cached prefix.

        The last token is left out even on a full hit, because its logits are needed; so is all from before the first
        prompt position whose log-probabilities are still to be told.
        """
        request.update_hashes(self.block_size)
        usable = ((request.untold_position or len(request.tokens)) - 1) // self.block_size
        request.block_ids = self.pool.take_prefix(request.hashes[:usable])
        request.num_computed_tokens = len(request.block_ids) * self.block_size
        request.num_registered_blocks = len(request.block_ids)
        if not request.preempted_unix_ns:
            request.num_cached_tokens = min(request.num_computed_tokens, request.num_prompt_tokens)

    def take_computed(self, request: Request, num_tokens: int) -> bool:
        """Starts a request whose first `num_tokens` tokens' KV is kept elsewhere: what is cached is taken as it is.

        `num_registered_blocks` then says how many blocks that are; the others are the caller's to fill before anything
        reads them. False (and no change) when the pool has not enough.
        """
        request.update_hashes(self.block_size)
        hits = self.pool.take_prefix(request.hashes[: num_tokens // self.block_size])
        fresh = self.pool.allocate(self.blocks_for(num_tokens) - len(hits))
        if fresh is None:
            self.pool.release(reversed(hits))
            return False
        request.block_ids = hits + fresh
        request.num_computed_tokens = num_tokens
        request.num_registered_blocks = len(hits)
        return True

    def can_fork(self, leader: Request, follower: Request) -> bool:
        """Whether `leader`, whose tokens begin with all of `follower`'s, has the KV of all but the last of them."""
        return bool(leader.block_ids) and leader.num_computed_tokens >= len(follower.tokens) - 1

    def fork(self, leader: Request, follower: Request) -> None:
        """Starts a request that holds no blocks with those of another one, by reference; `can_fork` must hold.

        The last token is computed again, because its logits are needed. Where its block holds KV already, the block is
        to be copied first (`own_last_block`): the leader writes behind its prompt, and the follower will.
        """
        num_tokens = len(follower.tokens) - 1
        full = num_tokens // self.block_size
        leader.update_hashes(self.block_size)
        follower.hashes = leader.hashes[:full]
        follower.last_hash = follower.hashes[-1] if full else follower.last_hash
        follower.block_ids = leader.block_ids[: self.blocks_for(num_tokens)]
        follower.shares_last_block = len(follower.block_ids) > full
        self.pool.share(follower.block_ids)
        follower.num_computed_tokens = num_tokens
        follower.num_registered_blocks = full
        follower.num_cached_tokens = min(num_tokens, follower.num_prompt_tokens)

    def own_last_block(self, request: Request) -> list[tuple[int, int]] | None:
        """Makes a shared last block the request's own; copies (from, to) to be made before it is written.

        None (and no change) when the pool has no block.
        """
        shared = request.block_ids[-1]
        if not request.shares_last_block or self.pool.is_private(shared):
            request.shares_last_block = False
            return []
        own = self.pool.allocate(1)
        if own is None:
            return None
        request.block_ids[-1] = own[0]
        request.shares_last_block = False
        self.pool.release([shared])
        return [(shared, own[0])]

    def count_query(self, request: Request) -> None:
        """Counts a prefix look-up that led to a start, for the hit rate."""
        self.num_query_tokens += len(request.tokens)
        self.num_hit_tokens += request.num_computed_tokens

    def grow(self, request: Request, num_tokens: int) -> bool:
        """Makes room for `num_tokens` tokens in all; False (and no change) when the pool has not enough."""
        missing = self.blocks_for(num_tokens) - len(request.block_ids)
        if missing > 0:
            blocks = self.pool.allocate(missing)
            if blocks is None:
                return False
            request.block_ids += blocks
        return True

    def register(self, request: Request, num_tokens: int | None = None) -> None:
        """Makes every block that computed tokens have filled findable; of the first `num_tokens` of them, if given."""
        computed = request.num_computed_tokens
        full = (computed if num_tokens is None else min(computed, num_tokens)) // self.block_size
        if full > request.num_registered_blocks:
            request.update_hashes(self.block_size)
            for index in range(request.num_registered_blocks, full):
                self.pool.register(request.block_ids[index], request.hashes[index])
            request.num_registered_blocks = full

    def release(self, request: Request) -> None:
        """Gives all blocks back; those that ended steps have filled stay in the prefix cache. A second call is a no-op.

        Blocks that a step in flight may write are held back until it has ended (`settle`): a grant would let a peer
        write them at any moment.
        """
        blocks = self._drop(request)
        if request.num_steps_in_flight and blocks:
            self._held_back[request] = blocks
        else:
            self.pool.release(reversed(blocks))

    def release_to_next_step(self, request: Request) -> None:
        """As `release`, for a preemption: the step being planned may use the blocks, since the device runs it later.

        Nobody but that step may have them before the step in flight has ended.
        """
        self.pool.release(reversed(self._drop(request)))

    def settle(self, request: Request) -> None:
        """Gives back what was held back, unless a step that computes tokens of `request` is still in flight."""
        if not request.num_steps_in_flight:
            self.pool.release(reversed(self._held_back.pop(request, [])))

    @property
    def held_back(self) -> list[list[int]]:
        """The block lists that wait for the end of a step in flight."""
        return [*self._held_back.values()]

    def _drop(self, request: Request) -> list[int]:
        self.register(request, request.num_settled_tokens)
        blocks = request.block_ids
        request.block_ids = []
        request.num_computed_tokens = 0
        request.num_settled_tokens = 0
        request.num_registered_blocks = 0
        request.shares_last_block = False
        return blocks
