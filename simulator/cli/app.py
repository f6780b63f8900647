"""The commands below `baton simulate`."""

import typer

from simulator.cli import agents, fit, fit_results, run
from simulator.questions import aggregation, loss, ratio, routing

app = typer.Typer(
    name="baton simulate",
    help="Simulate a cluster: the product's scheduler, blocks and routing on a virtual clock.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# What a command does not know of its own are flags of a load.
_LOAD_FLAGS = {"allow_extra_args": True, "ignore_unknown_options": True}

app.command("run", context_settings=_LOAD_FLAGS)(run.run)
app.command("fit")(fit.fit)
app.command("fit-results")(fit_results.fit_results)
app.command("ratio")(ratio.ratio)
app.command("routing")(routing.routing)
app.command("aggregation")(aggregation.aggregation)
app.command("loss")(loss.loss)
app.command("agents")(agents.agents)
