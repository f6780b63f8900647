"""The decode scheduler: continuous batching of running requests, with local prefill in what is left of the budget."""

from collections import deque
from collections.abc import Sequence

from engine.config import SchedulerConfig
from engine.request import Key, Request
from engine.scheduler.base import Advanced, Scheduler, SequencePlan, StepPlan, ends_by_length, finish_reason
from engine.scheduler.blocks import RequestBlocks
from engine.scheduler.forks import Forks
from engine.scheduler.policy import SchedulingPolicy, make_policy
from engine.scheduler.preemption import Preemption
from engine.scheduler.queue import RankedQueue
from engine.scheduler.shares import StepShares, whole_or_part


class DecodeScheduler(Scheduler):
    """Running decodes first, then running prefills, then waiting requests; the last two by rank.

    A waiting request either needs its prompt computed here (`add`) or arrives with its KV in place (`admit`). When
    blocks run out, the holder of the highest rank is preempted for the sake of the others, and waits again in its
    place. One that finds nobody behind it stalls: it keeps what it has, and nothing new is started before it. When all
    that run stall because of blocks of those who wait, the last one is preempted.

    A follower (`add_fork`) has its leader's prompt, and waits for its KV. It then waits for its turn with references to
    the leader's blocks, and copies the last one, if that is partly filled, in the step that starts it.

    A step costs nothing per running decode but its turn in some loops: what is planned for it does not change, and only
    one that has filled a block needs another. Blocks of its output become findable when it ends or is preempted.

    While a step is in flight, its decodes are planned as if none of its tokens were a stop token, but not those that
    will have reached their length. Nobody is preempted for blocks that will come back when that step has ended.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        blocks: RequestBlocks,
        max_model_len: int,
        preemption: Preemption,
        policy: SchedulingPolicy | None = None,
    ) -> None:
        self._budget = config.max_num_batched_tokens
        self._prompt_share = config.prompt_share
        self._max_num_seqs = min(config.max_num_seqs, self._budget)  # so that every decode has its token each step
        self._growth_reserve_blocks = config.growth_reserve_blocks
        self._blocks = blocks
        self._max_model_len = max_model_len
        self._preemption = preemption
        self._policy = policy or make_policy(config)
        self._waiting = RankedQueue()
        self._prefilling: dict[Key, Request] = {}
        self._decoding: dict[Key, SequencePlan] = {}  # what every step does for it
        self._at_border: list[Request] = []  # of those that may be decoding, the ones that have filled their last block
        self._ending: dict[Key, Request] = {}  # with a last token that is not known yet
        self._computed: deque[list[int]] = deque()  # tokens of each request behind each step in flight
        self._forks = Forks()
        self._fork_copies: list[tuple[int, int]] = []  # (device block, device block), of the step being planned

    def add(self, request: Request) -> None:
        request.rank = self._policy.rank(request)
        request.is_over = False
        self._waiting.push(request)

    def admit(self, request: Request) -> None:
        """Queues a request whose prompt's KV is in its blocks and whose first output token is known."""
        self.add(request)
        self._fork_all(request)

    def add_fork(self, request: Request, leader: Request) -> None:
        """Queues a request whose tokens `leader`'s begin with, which is held here or in an open grant.

        It waits for the leader's KV, or to compute its own when the leader is removed or abandoned before.
        """
        request.rank = self._policy.rank(request)
        self._forks.wait(leader.key, [request])
        if self._blocks.can_fork(leader, request):
            self._fork_all(leader)

    def abandon(self, leader: Key) -> None:
        """There will be no KV of this key: its first follower computes the prompt instead, and the others follow it."""
        followers = self._forks.take(leader)
        if followers:
            self._waiting.push(followers[0])
            self._forks.wait(followers[0].key, followers[1:])

    def find(self, key: Key) -> Request | None:
        """The request of that key, if it runs or waits for its turn."""
        plan = self._decoding.get(key)
        if plan:
            return plan.request
        return self._prefilling.get(key) or self._waiting.get(key) or self._ending.get(key)

    def _fork_all(self, leader: Request) -> None:
        for follower in self._forks.take(leader.key):
            self._blocks.fork(leader, follower)
            self._waiting.push(follower)

    def remove(self, key: Key) -> Request | None:
        request = self._waiting.remove(key) or self._stop_running(key) or self._forks.remove(key)
        if request:
            request.is_over = True
            self._preemption.forget(request)
            self.abandon(key)
        return request

    def decoding(self, key: Key) -> Request | None:
        """The request of that key, if it draws a token a step: its KV is in its blocks but for the newest token's."""
        plan = self._decoding.get(key)
        return plan.request if plan else None

    def _stop_running(self, key: Key) -> Request | None:
        if plan := self._decoding.pop(key, None):
            return plan.request
        return self._prefilling.pop(key, None) or self._ending.pop(key, None)

    def schedule(self) -> StepPlan:
        preemptions = self._preemption.num_preemptions
        stalled = self._grow_decodes()
        shares = StepShares(self._budget - len(self._decoding) + len(stalled), self._prompt_share, whole_or_part)
        all_grown = self._plan_prefills(shares) and not stalled
        may_start = all_grown and self._preemption.num_preemptions == preemptions
        all_stall = len(stalled) == len(self._decoding) and not shares.sequences()
        if may_start or (all_stall and self._give_way()):
            self._start_waiting(shares)
        shares.deal_rest(self._blocks.grow)
        decodes = [plan for plan in self._decoding.values() if not stalled or plan.request.key not in stalled]
        copies = self._preemption.take_copies()._replace(within=tuple(self._fork_copies))
        self._fork_copies = []
        return StepPlan((*decodes, *shares.sequences()), copies)

    def _grow_decodes(self) -> set[Key]:
        """Gives a block to each decode that has filled its last one; returns those that must stall."""
        stalled: set[Key] = set()
        for request in self._at_border:
            if request.key in self._decoding and not self._make_room(request, request.num_computed_tokens + 1):
                stalled.add(request.key)
        self._at_border = [request for request in self._at_border if request.key in stalled]
        return stalled & self._decoding.keys()

    def _plan_prefills(self, shares: StepShares) -> bool:
        """Whether all running prefills that are in the budget have room."""
        all_grown = True
        for request in sorted(self._prefilling.values(), key=_rank):
            if request.key not in self._prefilling:  # preempted for the sake of one before it
                continue
            chunk = shares.offer(request)
            if chunk == 0:
                continue
            if self._make_room(request, request.num_computed_tokens + chunk):
                shares.take(request, chunk)
            else:
                all_grown = False
        return all_grown

    def _start_waiting(self, shares: StepShares) -> None:
        while (request := self._waiting.first) and shares.left and self._num_planned < self._max_num_seqs:
            if request.num_unknown_tokens:  # preempted in this very step
                return
            has_kv = bool(request.block_ids or request.host_block_ids)  # of its own, not only in the prefix cache
            if not self._has_room(request) or not self._resume(request):
                return
            chunk = shares.offer(request)
            if chunk == 0 or not self._make_room(request, request.num_computed_tokens + chunk):
                if not has_kv:
                    self._blocks.release(request)
                return
            if not has_kv:
                self._blocks.count_query(request)
            self._waiting.remove(request.key)
            self._prefilling[request.key] = request
            shares.take(request, chunk)

    def _resume(self, request: Request) -> bool:
        """Puts in place what is left of its KV, or of another's with the same prefix; False when there is no room."""
        if request.block_ids:
            return self._own_last_block(request)
        while not self._preemption.resume(request):
            if not self._preempt_behind(request):
                return False
        return True

    def _own_last_block(self, request: Request) -> bool:
        """Nobody who comes later in this step can preempt it, so its copy is made before its block is another's."""
        while (copies := self._blocks.own_last_block(request)) is None:
            if not self._preempt_behind(request):
                return False
        self._fork_copies += copies
        return True

    def _has_room(self, request: Request) -> bool:
        """Whether the whole request so far fits and leaves the running ones their growth reserve.

        A request that is alone may use everything, so that one long sequence is never refused for good.
        """
        if not self.num_running:
            return True
        reserve = self._growth_reserve_blocks * self.num_running
        missing = self._blocks.blocks_for(len(request.tokens)) - len(request.block_ids) + request.shares_last_block
        return missing + reserve <= self._blocks.pool.num_allocatable

    def _make_room(self, request: Request, num_tokens: int) -> bool:
        while not self._blocks.grow(request, num_tokens):
            if not self._preempt_behind(request):
                return False
        return True

    def _preempt_behind(self, request: Request) -> bool:
        """Preempts the last of all who hold blocks; False when `request` is that one, or none holds any.

        Also False while the end of the step in flight gives blocks back.
        """
        if self._ending or self._blocks.held_back:
            return False
        running = [plan.request for plan in self._decoding.values()]
        holders = [*running, *self._prefilling.values(), *(waiting for waiting in self._waiting if waiting.block_ids)]
        victim = max(holders, key=_rank, default=request)
        if victim.rank <= request.rank:
            return False
        self._preemption.preempt(victim)
        if self._stop_running(victim.key):
            self._waiting.push(victim)
        return True

    def _give_way(self) -> bool:
        """When nothing runs: preempts the last of those that want to, if waiting requests before it hold its blocks."""
        running = [*(plan.request for plan in self._decoding.values()), *self._prefilling.values()]
        is_computing = self._ending or self._blocks.held_back or any(request.num_steps_in_flight for request in running)
        if is_computing or not running or not any(request.block_ids for request in self._waiting):
            return False
        victim = max(running, key=_rank)
        self._preemption.preempt(victim)
        self._stop_running(victim.key)
        self._waiting.push(victim)
        return True

    def advance(self, plan: StepPlan) -> None:
        block_size, max_model_len, prefilling = self._blocks.block_size, self._max_model_len, self._prefilling
        self._computed.append(computed := [])
        for request, num_tokens, sample in plan.sequences:
            request.num_computed_tokens = end = request.num_computed_tokens + num_tokens
            computed.append(end)
            request.num_steps_in_flight += 1
            if not sample:
                continue
            if not end % block_size:
                self._at_border.append(request)
            request.num_unknown_tokens += 1
            if ends_by_length(request, max_model_len):
                self._stop_running(request.key)
                self._ending[request.key] = request
            elif prefilling and request.key in prefilling:
                del prefilling[request.key]
                self._decoding[request.key] = SequencePlan(request, 1, sample=True)

    def commit(self, plan: StepPlan, tokens: Sequence[int]) -> list[Advanced]:
        advanced = []
        max_model_len = self._max_model_len
        leaders, drawn = self._forks.by_leader, iter(tokens)
        for (request, num_tokens, sample), computed in zip(plan.sequences, self._computed.popleft(), strict=True):
            request.num_steps_in_flight -= 1
            if sample:
                request.num_unknown_tokens -= 1
                token = next(drawn)
            if request.is_over:
                self._blocks.settle(request)
                continue
            request.num_settled_tokens = computed
            if num_tokens > 1:
                self._blocks.register(request, computed)
            if not sample:
                advanced.append(Advanced(request, None, None))
                continue
            request.tokens.append(token)
            finish = finish_reason(request, max_model_len)
            advanced.append(Advanced(request, token, finish))
            if leaders and request.key in leaders:
                self._fork_all(request)
            if finish:
                self.remove(request.key)
                self._blocks.release(request)
        return advanced

    def holders(self) -> Sequence[Sequence[int]]:
        return [*(request.block_ids for request in self._requests()), *self._blocks.held_back]

    def check_swap_space(self) -> list[str]:
        """What is wrong with the host blocks of preempted requests; empty when all is well."""
        return self._preemption.check_integrity(self._requests())

    def _requests(self) -> list[Request]:
        """All that may hold blocks."""
        running = [*(plan.request for plan in self._decoding.values()), *self._prefilling.values()]
        return [*running, *self._ending.values(), *self._waiting]

    @property
    def num_running(self) -> int:
        return self._num_planned + self.num_ending

    @property
    def num_ending(self) -> int:
        """Requests among the running ones that the step in flight is the last one for."""
        return len(self._ending)

    @property
    def _num_planned(self) -> int:
        """Requests that the next steps are for."""
        return len(self._decoding) + len(self._prefilling)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting) + len(self._forks)


def _rank(request: Request) -> tuple[float, int]:
    return request.rank
