"""The requests that a decode worker is handing on, each from `Migrate` to `MigrateEnded`."""

from collections.abc import Callable

from baton import faults
from baton.errors import BatonError, ErrorCode, invalid
from baton.faults import Point
from engine.context import EngineContext
from engine.handover_table import HandOverTable
from engine.messages import Aborted, Migrate, MigrateEnded
from engine.migration import Migration, problem_with_migration
from engine.request import Key, Request
from engine.scheduler.decode import DecodeScheduler
from kv_transfer.base import KVSender
from kv_transfer.layout import check_compatible


class Migrations:
    """Of one decode role, which tells this of every step and of what ends. The sender is made for the first one."""

    def __init__(
        self,
        context: EngineContext,
        scheduler: DecodeScheduler,
        open_sender: Callable[[], KVSender] | None,
        on_stopped: Callable[[Key], None],
    ) -> None:
        """`open_sender`: None where nothing can be sent. `on_stopped`: a request has left the scheduler for good."""
        self._context = context
        self._scheduler = scheduler
        self._open_sender = open_sender
        self._on_stopped = on_stopped
        self._sender: KVSender | None = None
        self._table: HandOverTable | None = None
        self._migrations: dict[Key, Migration] = {}

    def start(self, command: Migrate) -> None:
        """Begins, or answers why not."""
        faults.at(Point.MIGRATE_RECEIVED)
        key = (command.request_id, command.epoch)
        try:
            request = self._request_of(key)
            if problem := problem_with_migration(request, command, self._context.config.cache.block_size):
                raise invalid(problem)
            check_compatible(self._context.runner.layout, command.grant.layout)
            table, sender = self._opened()
            self._migrations[key] = migration = table.open(
                command.grant,
                lambda peer_id: Migration(
                    self._context, sender, request, command, peer_id, self._scheduler, self._on_stopped
                ),
            )
        except BatonError as error:
            self._context.emit(MigrateEnded(command.call_id, *key, moved=False, problem=error.message))
            return
        table.attempt(migration, migration.advance)

    def _request_of(self, key: Key) -> Request:
        self._forget_closed()
        if key in self._migrations:
            raise BatonError(ErrorCode.FAILED_PRECONDITION, "it is being handed on already")
        request = self._scheduler.decoding(key)
        if request is None:
            raise BatonError(ErrorCode.FAILED_PRECONDITION, "it does not draw tokens here now; try again later")
        return request

    def _opened(self) -> tuple[HandOverTable, KVSender]:
        if self._open_sender is None:
            raise BatonError(ErrorCode.FAILED_PRECONDITION, "this worker has no connector to send KV with")
        if self._table is None or self._sender is None:
            self._sender = self._open_sender()
            self._table = HandOverTable(self._context, self._sender, self._scheduler)
        return self._table, self._sender

    def after_step(self) -> None:
        """Sends what the step has completed."""
        if self._migrations and self._table:
            self._forget_closed()
            for migration in list(self._migrations.values()):
                if migration.lapsed:
                    self._give_up(migration, "it does not draw tokens here any more")
                else:
                    self._table.attempt(migration, migration.advance)

    def abort(self, key: Key) -> bool:
        """Ends a request's hand-over, if it is under way; True when the request was this one's, and ends with it."""
        self._forget_closed()
        migration, table = self._migrations.get(key), self._table
        if migration is None or table is None:
            return False
        if not migration.stopped:
            self._give_up(migration, "it was cancelled")
        elif migration.last_events:
            table.abort(key)
        else:
            table.end(key, [Aborted(*key, fenced=True), migration.not_moved("it was cancelled")])
        return migration.stopped

    def request_ended(self, key: Key) -> None:
        """It has finished or failed by itself."""
        if migration := self._migrations.get(key):
            self._give_up(migration, "it has ended")

    def _give_up(self, migration: Migration, problem: str) -> None:
        if not migration.last_events and self._table:
            self._table.end(migration.request.key, [migration.not_moved(problem)])

    def poll(self) -> None:
        """Looks at writes, leases and peers; returns at once."""
        if self._table:
            self._table.poll()

    @property
    def under_way(self) -> bool:
        """Whether `poll` is wanted soon."""
        return bool(self._table and self._table.writing)

    def holders(self) -> list[list[int]]:
        """The block lists of all hand-overs, for the integrity check."""
        return self._table.holders() if self._table else []

    def close(self) -> None:
        """Releases the connector. Idempotent."""
        if self._sender:
            self._sender.close()

    def _forget_closed(self) -> None:
        if self._migrations and self._table:
            self._migrations = {key: one for key, one in self._migrations.items() if key in self._table}
