"""The commands below `baton bench`."""

import typer

from baton.cli.bench import compare, offline, serve, sweep

bench = typer.Typer(name="bench", help="Measure latency, throughput and goodput.", no_args_is_help=True)
bench.command("serve")(serve.serve)
bench.command("compare")(compare.compare)
bench.command("sweep")(sweep.sweep)
offline.add_commands(bench)
