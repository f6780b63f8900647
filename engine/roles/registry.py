"""Which role class runs in an engine core; imports a connector only for a role that needs one."""

from baton.types import Role
from engine.context import EngineContext
from engine.roles.base import EngineRole
from engine.roles.decode import DecodeRole
from engine.roles.grammar_gate import GrammarGate
from engine.roles.local import LocalRole
from engine.roles.prefill import PrefillRole
from kv_transfer.base import PoolRegion
from kv_transfer.registry import make_receiver, make_sender
from kv_transfer.tether.listener import TetherOptions


def make_role(context: EngineContext) -> EngineRole:
    """The role that the configuration names, over its connector where it has one, behind the gate for grammars."""
    return GrammarGate(context, _make_role(context))


def _make_role(context: EngineContext) -> EngineRole:
    config, pool = context.config, context.runner.pool
    if config.role is Role.AGGREGATED:
        return LocalRole(context)
    region = PoolRegion(pool.data_ptr(), pool.shape[0], context.runner.layout.block_bytes, config.device)
    if config.role is Role.PREFILL:
        return PrefillRole(context, make_sender(config.connector, region, config.worker.name))
    tether = TetherOptions(config.host, config.advertised_host, linger_s=config.lease.longest_write_s)
    receiver = make_receiver(config.connector, region, config.worker.name, tether=tether)
    return DecodeRole(context, receiver, lambda: make_sender(config.connector, region, config.worker.name))
