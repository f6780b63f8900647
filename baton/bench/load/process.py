"""A process of the client: gets its share, warms up, waits for the start, sends, and hands its rows back."""

import asyncio
import contextlib
import gc
from multiprocessing.connection import Connection

import msgspec

from baton.bench.load.lag import LagMonitor
from baton.bench.load.messages import Broken, Done, Progress, Ready, Share, Start, encode, to_process
from baton.bench.load.sender import Sender
from baton.bench.targets.base import Target, now_s
from baton.bench.targets.registry import make_target
from baton.bench.workloads.options import make_workload
from baton.errors import BatonError, ErrorCode

_PROGRESS_S = 0.5
_WARMUP_SEED = 1_000_003  # added to the seed: the warm-up's prompts are others
_WARMUP_AT_ONCE = 8


def run_process(share: Share, pipe: Connection) -> None:
    """The whole life of the process."""
    try:
        asyncio.run(_run(share, pipe))
    except BatonError as error:
        pipe.send_bytes(encode(Broken(error.code.value, error.message)))
    except (BrokenPipeError, EOFError):
        pass  # the process that started this one is gone, and with it who would read rows
    finally:
        pipe.close()


async def _run(share: Share, pipe: Connection) -> None:
    workload = make_workload(share.options.workload)
    async with make_target(share.options.target, share.options.temperature) as target:
        await _warm_up(share, target)
        sender = Sender(share.options, workload, target, share.process)
        monitor = LagMonitor(share.process)
        gc.collect()
        gc.freeze()  # what is there stays; the load's own garbage is little, so pauses are short
        pipe.send_bytes(encode(Ready()))
        start = to_process.decode(await asyncio.to_thread(pipe.recv_bytes))
        if not isinstance(start, Start):
            pipe.send_bytes(encode(Broken(ErrorCode.CANCELLED.value, "stopped before the load began")))
            return
        loop = asyncio.get_running_loop()
        loop.add_reader(pipe.fileno(), _stop, sender, pipe)  # the next thing in it is a Stop, or its end
        monitor.start()
        reporter = asyncio.create_task(_report(sender, pipe))
        try:
            rows = await sender.run(start.start_s)
        finally:
            reporter.cancel()
            loop.remove_reader(pipe.fileno())
        lag = monitor.stop(rows)
    pipe.send_bytes(encode(Done(rows, lag)))


def _stop(sender: Sender, pipe: Connection) -> None:
    asyncio.get_running_loop().remove_reader(pipe.fileno())  # at the pipe's end it would be readable for ever
    with contextlib.suppress(EOFError):
        pipe.recv_bytes()  # a message left unread would take those sent the other way along when the pipe is closed
    sender.stop()


async def _report(sender: Sender, pipe: Connection) -> None:
    while True:
        await asyncio.sleep(_PROGRESS_S)
        pipe.send_bytes(encode(Progress(sender.counts)))


async def _warm_up(share: Share, target: Target) -> None:
    """Raises:
    BatonError: FAILED_PRECONDITION when no request of the warm-up ends well.
    """
    options = share.options
    if not options.num_warmup:
        return
    warmup = msgspec.structs.replace(
        options,
        workload=msgspec.structs.replace(options.workload, seed=options.workload.seed + _WARMUP_SEED),
        arrivals="closed",
        concurrency=max(options.num_processes, min(options.num_warmup, _WARMUP_AT_ONCE)),
        num_sessions=options.num_warmup,
        duration_s=None,
        seed=options.seed + _WARMUP_SEED,
    )
    rows = await Sender(warmup, make_workload(warmup.workload), target, share.process).run(now_s())
    failed = [row for row in rows if row.error is not None]
    if rows and len(failed) == len(rows):
        raise BatonError(
            ErrorCode.FAILED_PRECONDITION,
            f"all {len(rows)} requests of the warm-up failed; the first with {failed[0].error}: {failed[0].message}",
        )
