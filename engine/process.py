"""The engine core's process: `python -m engine.process --fd N`, started by a service with a socket at N."""

import argparse
import logging
import signal
import socket
import sys

from baton.errors import BatonError
from engine.context import EngineContext
from engine.messages import Command, GetStats, PrefixCacheReset, Ready, ResetPrefixCache, Shutdown, StatsReply
from engine.roles.base import EngineRole
from engine.roles.registry import make_role
from engine.wire import CoreChannel


class EngineCore:
    """The loop: commands, transfers, one step, events; until told to shut down or the service is gone."""

    def __init__(self, channel: CoreChannel, context: EngineContext, role: EngineRole) -> None:
        self._channel = channel
        self._context = context
        self._role = role
        self._stopping = False

    def run(self) -> None:
        """Returns after Shutdown. Raises EOFError when the service is gone."""
        runner = self._context.runner
        self._context.emit(Ready(runner.layout, runner.num_blocks, self._context.max_model_len))
        self._context.flush()
        computed = False
        while not self._stopping:
            for command in self._channel.receive(0 if computed else self._role.idle_s()):
                self._handle(command)
            self._role.poll()
            self._context.flush()
            computed = self._role.step()
            self._context.flush()

    def _handle(self, command: Command) -> None:
        if isinstance(command, Shutdown):
            self._stopping = True
        elif isinstance(command, GetStats):
            problems = tuple(self._role.check_integrity()) if command.check else ()
            self._context.emit(StatsReply(command.call_id, self._role.stats(), problems))
        elif isinstance(command, ResetPrefixCache):
            self._context.emit(PrefixCacheReset(command.call_id, self._context.pool.reset_cache()))
        else:
            self._role.handle(command)


def main() -> int:
    """0 after Shutdown or when the service is gone, 1 when the configuration cannot be served."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="file descriptor of the socket to the service")
    channel = CoreChannel(socket.socket(fileno=parser.parse_args().fd))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the service decides when to stop
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    role = context = None
    try:
        context = EngineContext(channel.receive_config(), channel.send)
        role = make_role(context)
        EngineCore(channel, context, role).run()
    except EOFError:
        logging.getLogger(__name__).info("the service is gone")
    except BatonError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    finally:
        if role:
            role.close()
        if context:
            context.close()
        channel.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
