"""`baton simulate fit`: costs of a stack from a recorded run of it."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from baton.bench.costs import kv_bytes_per_token
from baton.bench.run_folder import read_run
from baton.errors import invalid
from baton.load_options import LoadFormat
from baton.model_spec import load_model_spec
from engine.config import SchedulerConfig
from engine.step_log import read_step_log
from simulator.cluster import ClusterOptions
from simulator.costs import write_costs
from simulator.fitting.from_logs import costs_from_logs
from simulator.fitting.messages import with_messages

_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def fit(
    steps: Annotated[Path, typer.Option(help="The folder that `baton up --step-log` wrote.")],
    lone: Annotated[Path, typer.Option(help="Folder of `baton bench serve --concurrency 1` on that stack.")],
    model: Annotated[Path, typer.Option(help="The model's folder.")],
    out: Annotated[Path, typer.Option(help="The file of costs.")],
    dtype: Annotated[str, typer.Option(help=f"Of the KV; one of: {', '.join(_ITEM_BYTES)}.")] = "float32",
    block_size: Annotated[int, typer.Option(help="The stack's.")] = 16,
    kv_cache_bytes: Annotated[int, typer.Option(help="Of each worker.")] = 1 << 30,
    max_num_batched_tokens: Annotated[int, typer.Option(help="The stack's.")] = 512,
    max_num_seqs: Annotated[int, typer.Option(help="The stack's.")] = 64,
) -> None:
    """Fit steps, turns and writes to what workers recorded, and messages to what a client saw of lone requests.

    Record a stack under a load of lone requests and then under one like those to be simulated:
    `baton up --step-log FOLDER`, `baton bench serve --concurrency 1 --out LONE`, `baton bench serve …`, Ctrl-C.
    """
    if dtype not in _ITEM_BYTES:
        raise invalid(f"got --dtype {dtype}, expected {', '.join(_ITEM_BYTES)}")
    files = sorted(steps.glob("*.jsonl"))
    if not files:
        raise invalid(f"--steps {steps}: got no *.jsonl in it, expected the folder that `baton up --step-log` wrote")
    logs = {file.stem: read_step_log(file) for file in files}
    prefill = [log for name, log in logs.items() if name.startswith("prefill")]
    others = [log for name, log in logs.items() if not name.startswith("prefill")]
    spec = load_model_spec(model, model.name, LoadFormat.DUMMY)
    costs = costs_from_logs(prefill, others, kv_bytes_per_token(spec, _ITEM_BYTES[dtype]))
    costs = msgspec.structs.replace(costs, kv_bytes=float(kv_cache_bytes))
    scheduler = SchedulerConfig(max_num_batched_tokens, max_num_seqs)
    cluster = ClusterOptions(
        num_prefill=len(prefill),
        num_decode=len(others) if prefill else 0,
        num_aggregated=0 if prefill else len(others),
        num_blocks=int(kv_cache_bytes / (costs.kv_bytes_per_token * block_size)),
        max_model_len=spec.max_position_embeddings,
        prefill=scheduler,
        decode=scheduler,
    )
    costs = with_messages(costs, read_run(lone), cluster)
    write_costs(out, costs)
    print(f"{costs.source}\nWrote {out}")
