"""The commands below `baton bench`."""

import typer

from baton.cli.bench import compare, offline, serve

bench = typer.Typer(name="bench", help="Measure latency, throughput and goodput.", no_args_is_help=True)
bench.command("serve")(serve.serve)
bench.command("compare")(compare.compare)
offline.add_commands(bench)
