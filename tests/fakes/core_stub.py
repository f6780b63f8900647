"""Stands for an engine core that `core_nursery.py` forks, and ends as it does: `core_stub.py SOCKET --fd N`."""

import os
import signal
import socket
import struct
import sys

connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
connection.connect(sys.argv[1])
socket.send_fds(connection, [b"x"], [int(sys.argv[3]), 2])
os.close(int(sys.argv[3]))
answer = connection.recv(4)
(code,) = struct.unpack("!i", answer) if len(answer) == 4 else (1,)
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
    os.kill(os.getpid(), -code)
sys.exit(code)
