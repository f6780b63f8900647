"""Starts engine cores by fork from a process that has imported everything: `python core_nursery.py SOCKET`.

A core takes 2 seconds of a CPU to import what it needs, too long for hundreds of restarts in a test. The service starts
`core_stub.py` in its place, which hands the core's socket over to this process. The core is a process of its own, and
killed when its stub is: so it dies with the service's process group, like a core that was started the usual way.
"""

import contextlib
import os
import select
import signal
import socket
import struct
import sys
import traceback

CODE = struct.Struct("!i")  # what a stub is told: its core's exit code


class Core:
    """A forked core and the connection of its stub."""

    def __init__(self, stub: socket.socket, pid: int) -> None:
        self.stub = stub
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)

    def close(self) -> None:
        self.stub.close()
        os.close(self.pidfd)


class Nursery:
    """The loop."""

    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(64)
        self._cores: list[Core] = []

    def run(self) -> None:
        """Until it is killed."""
        while True:
            waited = [self._listener, *(core.stub for core in self._cores), *(core.pidfd for core in self._cores)]
            ready = set(select.select(waited, [], [])[0])
            for core in list(self._cores):
                if core.pidfd in ready:
                    self._end(core)
                elif core.stub in ready:  # the stub is gone, and sends nothing in its life
                    os.kill(core.pid, signal.SIGKILL)
                    self._end(core)
            if self._listener in ready:
                self._start()

    def _start(self) -> None:
        stub, _ = self._listener.accept()
        _, descriptors, _, _ = socket.recv_fds(stub, 1, 2)
        if len(descriptors) < 2:
            stub.close()
            return
        channel, stderr = descriptors
        pid = os.fork()
        if pid == 0:
            self._be_core(stub, channel, stderr)
        os.close(channel)
        os.close(stderr)
        self._cores.append(Core(stub, pid))

    def _be_core(self, stub: socket.socket, channel: int, stderr: int) -> None:
        """In the child; does not return."""
        code = 70
        try:
            self._listener.close()
            stub.close()
            for core in self._cores:
                core.close()
            os.dup2(stderr, 2)
            os.close(stderr)
            from engine import process

            sys.argv = ["engine.process", "--fd", str(channel)]
            code = process.main()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _end(self, core: Core) -> None:
        _, status = os.waitpid(core.pid, 0)
        self._cores.remove(core)
        with contextlib.suppress(OSError):  # its stub is dead
            core.stub.sendall(CODE.pack(os.waitstatus_to_exitcode(status)))
        core.close()


def main() -> None:
    """Imports first, so that no core has to."""
    import kv_transfer.nixl_agent
    from baton_kernels import native

    native.available()
    kv_transfer.nixl_agent._import_bindings()
    Nursery(sys.argv[1]).run()


if __name__ == "__main__":
    main()
