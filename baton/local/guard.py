"""`python guard.py PARENT_PID COMMAND...`: becomes COMMAND, bound to its parent's life by the kernel.

A launcher that is killed with SIGKILL cannot stop its children, so Linux must do it: PR_SET_PDEATHSIG has the kernel
send a signal to this process when its parent goes away, and the setting survives exec. It is set here, in a small
program of its own, and not in subprocess's `preexec_fn`, because the launcher runs gRPC threads: Python code between
fork and exec can deadlock there on a lock that another thread held at the fork.

Two properties of PR_SET_PDEATHSIG matter. "Parent" means the thread that made the child, so the launcher starts its
children on a thread that lives as long as the stack. And a parent that died before the call is not noticed,
hence the comparison of process ids after it. The signal is SIGKILL: nothing is left that a clean stop would serve,
since Redis, with all leases in it, dies at the same moment.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with(parent_pid: int) -> None:
    """Asks the kernel for SIGKILL at the parent's death; exits at once if the parent is dead already.

    Raises:
        OSError: where prctl fails. On systems other than Linux nothing is asked for.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
    if os.getppid() != parent_pid:
        sys.exit(f"the launcher (process {parent_pid}) is gone")


def main(arguments: list[str]) -> None:
    """Takes the parent's process id and a command; does not return."""
    parent_pid, *command = arguments
    die_with(int(parent_pid))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
