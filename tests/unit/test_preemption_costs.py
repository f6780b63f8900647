"""Swap or recompute: whichever this core has measured to be cheaper."""

from engine.scheduler.costs import PreemptionCosts

BLOCK_BYTES = 1000


def make_costs(prompt_token_s: float = 1e-3, block_s: float = 1e-3) -> PreemptionCosts:
    costs = PreemptionCosts(BLOCK_BYTES)
    costs.observe_step(100, 1, 100 * prompt_token_s)
    costs.observe_copy(10, 10 * block_s)
    return costs


def test_the_cheaper_way_is_chosen() -> None:
    # 160 tokens in 10 blocks: 0.16 s to compute, twice 10 blocks to copy.
    assert make_costs(block_s=0.007).prefers_swap(160, 10)
    assert not make_costs(block_s=0.009).prefers_swap(160, 10)


def test_what_the_prefix_cache_keeps_costs_nothing_to_recompute() -> None:
    costs = make_costs(block_s=0.007)
    for _ in range(5):
        costs.observe_return(100, 10)
    assert not costs.prefers_swap(160, 10)


def test_newer_measurements_count_more() -> None:
    costs = make_costs(block_s=0.007)
    for _ in range(30):
        costs.observe_step(100, 1, 0.01)  # ten times as fast as at first
    assert not costs.prefers_swap(160, 10)


def test_steps_without_a_prompt_say_what_a_token_costs_only_while_none_had_one() -> None:
    costs = PreemptionCosts(BLOCK_BYTES)
    costs.observe_copy(10, 0.07)
    costs.observe_step(8, 8, 0.8)
    assert costs.prefers_swap(160, 10)
    costs.observe_step(100, 1, 0.01)
    assert not costs.prefers_swap(160, 10)


def test_nothing_measured() -> None:
    costs = PreemptionCosts(BLOCK_BYTES)
    assert not costs.prefers_swap(160, 10)  # there is no swap space
    costs.observe_copy(1, 1.0)
    assert costs.prefers_swap(160, 10)  # KV that came from elsewhere is not thrown away unpriced
    assert not costs.prefers_swap(0, 0)
