"""The flags of `baton bench serve` that say what a load is, as options: for other commands that take them, too."""

from collections.abc import Mapping
from typing import Any

from baton.bench.load.options import LoadOptions
from baton.bench.workloads.options import WorkloadOptions
from baton.bench.workloads.traces import Scale
from baton.errors import invalid

DEFAULT_REQUESTS = 200


def load_options(given: Mapping[str, Any], target: str) -> LoadOptions:
    """`given`: all parameters of `serve` by name.

    Raises:
        BatonError: INVALID_ARGUMENT for arrivals that contradict the rest.
    """
    arrivals, concurrency, requests = given["arrivals"], given["concurrency"], given["requests"]
    if arrivals is None:
        arrivals = "closed" if concurrency is not None else "trace" if given["workload"] == "trace" else "poisson"
    elif (arrivals == "closed") != (concurrency is not None):
        raise invalid(f"got --arrivals {arrivals} with --concurrency {concurrency}, expected --concurrency with closed")
    if requests is None and given["duration_s"] is None and given["workload"] != "trace":
        requests = DEFAULT_REQUESTS
    seed, prompt_seed = given["seed"], given["prompt_seed"]
    return LoadOptions(
        target=target,
        model=given["model"],
        workload=WorkloadOptions(
            kind=given["workload"],
            seed=seed if prompt_seed is None else prompt_seed,
            vocab_size=given["vocab_size"],
            input_tokens=given["input_tokens"],
            output_tokens=given["output_tokens"],
            length_spread=given["length_spread"],
            prefix_tokens=given["prefix_tokens"],
            num_prefixes=given["prefixes"],
            num_turns=given["turns"],
            think_s=given["think_s"],
            document_tokens=given["document_tokens"],
            num_questions=given["questions"],
            trace=given["trace"],
            scale=Scale(given["speed"], given["length_scale"], given["longest_request"]),
        ),
        arrivals=arrivals,
        rate=given["rate"],
        burstiness=given["burstiness"],
        concurrency=concurrency or 1,
        num_sessions=requests,
        duration_s=given["duration_s"],
        num_warmup=given["warmup"],
        drain_s=given["drain_s"],
        timeout_s=given["timeout_s"],
        temperature=given["temperature"],
        seed=seed,
        num_processes=given["processes"],
    )
