"""A worker's figures at a scrape: what its engine core, its admission and its directory entry say of themselves."""

import time
from collections.abc import Iterable

from prometheus_client.core import Metric as Family

from baton.directory.registrar import WorkerRegistrar
from baton.errors import BatonError
from baton.telemetry import metrics as declared
from baton.telemetry.exposition import Metrics, family, histogram_family
from baton.types import EngineStats, Role
from baton.worker.admission import Admission
from baton.worker.engine import Engine


class WorkerFigures:
    """Asks the core at a scrape, so that nothing is counted twice and a step costs nothing for it."""

    def __init__(self, role: Role, name: str, model: str, engine: Engine, admission: Admission) -> None:
        self._role = (role.value,)
        self._info = (role.value, name, model)
        self._engine = engine
        self._admission = admission
        self._registrar: WorkerRegistrar | None = None
        self._stats: EngineStats | None = None
        self._asked_s = time.monotonic()  # when what is in `_stats` was asked for

    def add_to(self, metrics: Metrics, registrar: WorkerRegistrar) -> None:
        """From now on they are in `metrics`."""
        self._registrar = registrar
        metrics.refresh_before_scrape(self._ask)
        metrics.read_at_scrape(self._read)

    async def _ask(self) -> None:
        asked_s = time.monotonic()
        try:
            self._stats = (await self._engine.stats()).stats
        except BatonError:
            return  # the core is dead, and its service about to end; the age tells
        self._asked_s = asked_s

    def _read(self) -> Iterable[Family]:
        role = self._role
        yield family(declared.WORKER_INFO, [(self._info, 1)])
        yield family(declared.DRAINING, [(role, self._admission.draining)])
        yield family(declared.ATTEMPTS_OPEN, [(role, self._engine.num_open)])
        yield family(declared.STATS_AGE, [(role, time.monotonic() - self._asked_s)])
        if self._registrar:
            yield family(declared.REDIS_LAG, [(role, self._registrar.lag_s)])
        if self._stats:
            yield from _engine(self._stats, role[0])


def _engine(stats: EngineStats, role: str) -> Iterable[Family]:
    blocks, fences, writes = stats.blocks, stats.fences, stats.writes
    by_state = {state: getattr(blocks, state) for state in ("free", "cached", "active", "quarantined")}
    yield family(declared.KV_BLOCKS, [((role, state), count) for state, count in by_state.items()])
    misses = stats.prefix_query_tokens - stats.prefix_hit_tokens
    recomputed = stats.preemptions - stats.swap_preemptions
    for metric, figures in {
        declared.ENGINE_REQUESTS: {"running": stats.running, "waiting": stats.waiting},
        declared.PREFIX_TOKENS: {"hit": stats.prefix_hit_tokens, "miss": misses},
        declared.PREEMPTIONS: {"recompute": recomputed, "swap": stats.swap_preemptions},
        declared.FENCES: {"confirmed": fences.confirmed, "expired": fences.expired},
        declared.TRANSFER_WRITES: {"done": writes.done, "failed": writes.failed},
    }.items():
        yield family(metric, [((role, name), value) for name, value in figures.items()])
    for metric, figure in {
        declared.KV_POOL_BLOCKS: blocks.total,
        declared.SWAP_BLOCKS: stats.swap_blocks_used,
        declared.GRANTS_OPEN: stats.grants,
        declared.DIGEST_MISMATCHES: stats.digest_mismatches,
        declared.QUARANTINES: fences.begun,
        declared.TETHERED: fences.held,
        declared.TRANSFER_BYTES: writes.bytes,
        declared.TRANSFER_BLOCKS: writes.blocks,
        declared.TRANSFER_SECONDS: writes.us / 1e6,
    }.items():
        yield family(metric, [((role,), figure)])
    yield histogram_family(declared.STEP_TIME, {(role,): stats.step_seconds})
    yield histogram_family(declared.STEP_BATCH_TOKENS, {(role,): stats.step_tokens})
    yield histogram_family(declared.STEP_BATCH_REQUESTS, {(role,): stats.step_sequences})
