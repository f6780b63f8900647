"""The most that prefix caches of a size can give: one cache for all workers, which every request finds."""

from collections import OrderedDict

from baton.bench.load.options import LoadOptions
from baton.bench.load.plan import open_loop
from simulator.content import Content, answer_name, block_keys
from simulator.study import workload_of


def best_hit_share(load: LoadOptions, num_copies: int, block_size: int, num_blocks: int) -> float:
    """Share of all prompt tokens that a cache of `num_blocks` blocks has, when the least recently used are evicted.

    Requests come one after another, in no time. A prompt's last token is computed in any case, as workers do. Turns of
    a conversation are taken as they would come if answers took no time: loads of one turn a session only.
    """
    workload = workload_of(load, num_copies)
    cache: OrderedDict[int, None] = OrderedDict()
    num_hit = num_tokens = 0
    for number, _ in open_loop(load, workload, 0):
        content: Content = workload.session(number).turns[0].new_tokens  # type: ignore[assignment]
        keys = block_keys(content, answer_name(number, 0), block_size).prompt
        usable = (len(content) - 1) // block_size
        hits = 0
        while hits < usable and keys[hits] in cache:
            hits += 1
        num_hit += hits * block_size
        num_tokens += len(content)
        for key in reversed(keys):  # a prompt's tail is evicted before its head
            cache[key] = None
            cache.move_to_end(key)
        while len(cache) > num_blocks:
            cache.popitem(last=False)
    return num_hit / num_tokens if num_tokens else 0.0
