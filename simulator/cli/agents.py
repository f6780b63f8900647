"""`baton simulate agents`: a made-up trace of agents."""

from pathlib import Path
from typing import Annotated

import typer

from baton.errors import invalid
from simulator.agents import write_agents


def agents(
    out: Annotated[Path, typer.Option(help="The trace, in the Mooncake format.")],
    sessions: Annotated[int, typer.Option(help="Agents.")] = 1000,
    rate: Annotated[float, typer.Option(help="Of them that begin in a second.")] = 0.5,
    seed: Annotated[int, typer.Option(help="The same trace for the same seed.")] = 0,
) -> None:
    """Write a trace of agents: few kinds with long instructions, many short turns over one growing context."""
    if sessions < 1 or not rate > 0 or seed < 0:
        raise invalid(
            f"got --sessions {sessions}, --rate {rate:g} and --seed {seed}, expected 1, above 0, and 0 or more"
        )
    print(f"Wrote {write_agents(out, sessions, rate, seed)} requests to {out}")
