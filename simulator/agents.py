"""A made-up load of agents in the Mooncake format: loops of many short turns over one growing context."""

import json
import random
from pathlib import Path

from baton.bench.workloads.trace_files import BLOCK_TOKENS

_KINDS = 6  # of agents: instructions and tools, shared by all sessions of a kind
_KIND_BLOCKS = range(6, 20)
_TURNS = range(4, 30)
_NEW_TOKENS = range(100, 2500)  # what a tool returns
_ANSWER_TOKENS = range(20, 300)
_PAUSE_S = (0.5, 8.0)  # a tool runs
_TURN_S = 3.0  # an answer takes about so long: arrivals are given, as in any trace


def write_agents(path: Path, num_sessions: int, sessions_s: float, seed: int) -> int:
    """Writes a trace of so many agents, begun at that rate; the number of requests."""
    draw = random.Random(seed)
    kinds = [draw.choice(_KIND_BLOCKS) for _ in range(_KINDS)]
    ids = iter(range(10**9))
    shared = [[next(ids) for _ in range(count)] for count in kinds]
    lines, start_s = [], 0.0
    for _ in range(num_sessions):
        start_s += draw.expovariate(sessions_s)
        at_s, known = start_s, list(draw.choice(shared))
        length = len(known) * BLOCK_TOKENS
        for _ in range(draw.choice(_TURNS)):
            length += draw.choice(_NEW_TOKENS)
            full = length // BLOCK_TOKENS
            known += [next(ids) for _ in range(full - len(known))]
            answer = draw.choice(_ANSWER_TOKENS)
            partly = [next(ids)] if length % BLOCK_TOKENS else []  # cut off, so that it is no other prompt's
            lines.append(
                {
                    "timestamp": round(at_s * 1e3),
                    "input_length": length,
                    "output_length": answer,
                    "hash_ids": known + partly,
                }
            )
            length += answer
            at_s += _TURN_S + draw.uniform(*_PAUSE_S)
    lines.sort(key=lambda line: line["timestamp"])  # type: ignore[arg-type, return-value]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return len(lines)
