"""The local stack: Redis, collector, gateway and workers as child processes of one launcher."""

from baton.local.stack import LocalStack

__all__ = ["LocalStack"]
