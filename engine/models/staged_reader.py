"""Parts of files into device memory by several threads, through a few pinned buffers.

A read out of the page cache is a copy by one core, and a copy out of pageable memory is staged by the driver: one
thread reaches a fraction of what the bus takes. Here several threads read at once, each into a buffer that the device
copies from on its own, while the thread fills its other one.
"""

import contextlib
import os
import queue
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from baton.errors import BatonError, ErrorCode

NUM_THREADS = 8
BUFFER_BYTES = 4 << 20


class _Buffer:
    """Staging memory, and the copy that reads it."""

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._memory = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=on_gpu)
        self._stream = torch.cuda.Stream(device) if on_gpu else None
        self.view = self._memory.numpy().data

    def send(self, num_bytes: int, out: Tensor) -> None:
        """Starts copying the first bytes to `out`; what is in the buffer must stay until `wait`."""
        with torch.cuda.stream(self._stream) if self._stream else contextlib.nullcontext():
            out.copy_(self._memory[:num_bytes], non_blocking=True)

    def wait(self) -> None:
        if self._stream:
            self._stream.synchronize()


class StagedReader:
    """Threads and buffers for one device. Used from one thread; `close` ends it."""

    def __init__(self, device: torch.device, num_threads: int = NUM_THREADS, buffer_bytes: int = BUFFER_BYTES) -> None:
        """Takes 2 * `num_threads` * `buffer_bytes` of host memory, whatever is read."""
        self._device = device
        self._buffer_bytes = buffer_bytes
        self._buffers = [_Buffer(buffer_bytes, device) for _ in range(2 * num_threads)]
        # First in, first out: a buffer comes up again when its copy has had the most time.
        self._idle: queue.SimpleQueue[_Buffer] = queue.SimpleQueue()
        for buffer in self._buffers:
            self._idle.put(buffer)
        self._threads = ThreadPoolExecutor(num_threads, "weights")
        self._descriptors: dict[Path, int] = {}

    def read_into(self, file: Path, start: int, out: Tensor) -> None:
        """Fills `out`, contiguous and on the device, with the bytes from `start` on; returns when they are there.

        Raises:
            BatonError: FAILED_PRECONDITION naming the file when it ends before or cannot be read.
        """
        if self._device.type == "cuda":
            # The memory of `out` may still be in use by work that was queued before it was freed.
            torch.cuda.current_stream(self._device).synchronize()
        target = out.view(-1).view(torch.uint8)
        descriptor = self._open(file)
        parts = [
            self._threads.submit(self._part, file, descriptor, start + done, target[done : done + self._buffer_bytes])
            for done in range(0, target.numel(), self._buffer_bytes)
        ]
        for part in parts:
            part.result()
        for buffer in self._buffers:
            buffer.wait()

    def close(self) -> None:
        """Closes files and ends threads. May be called twice."""
        self._threads.shutdown()
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def _open(self, file: Path) -> int:
        if file not in self._descriptors:
            try:
                self._descriptors[file] = os.open(file, os.O_RDONLY)
            except OSError as error:
                raise _unreadable(file, str(error)) from error
        return self._descriptors[file]

    @torch.inference_mode()
    def _part(self, file: Path, descriptor: int, start: int, out: Tensor) -> None:
        buffer, wanted, done = self._idle.get(), out.numel(), 0
        try:
            buffer.wait()
            while done < wanted:
                got = os.preadv(descriptor, [buffer.view[done:wanted]], start + done)
                if got == 0:
                    raise _unreadable(file, f"it ends after {start + done} bytes")
                done += got
            buffer.send(wanted, out)
        except OSError as error:
            raise _unreadable(file, str(error)) from error
        finally:
            self._idle.put(buffer)


def _unreadable(file: Path, reason: str) -> BatonError:
    return BatonError(ErrorCode.FAILED_PRECONDITION, f"cannot read {file}: {reason}; copy the file again")
