"""A worker that says why it failed a request is not taken for a dead one."""

from unittest.mock import Mock

import grpc
from grpc.aio import AioRpcError, Metadata
from grpc_status import rpc_status

from baton.errors import BatonError, ErrorCode
from baton.grpc_util.status import to_status
from baton.types import Role
from gateway.config import Limits
from gateway.worker_errors import worker_error


def make_worker() -> Mock:
    worker = Mock()
    worker.name, worker.record.role = "decode-0", Role.DECODE
    return worker


def test_its_own_word_is_passed_on() -> None:
    status = rpc_status.to_status(to_status(BatonError(ErrorCode.UNAVAILABLE, "no KV arrived within the lease of 8 s")))
    error = AioRpcError(status.code, Metadata(), Metadata(*status.trailing_metadata), status.details)
    worker = make_worker()
    assert (
        worker_error(error, worker, Limits()).message == "decode worker decode-0: no KV arrived within the lease of 8 s"
    )
    worker.avoid.assert_not_called()


def test_a_broken_connection_means_a_lost_worker() -> None:
    error = AioRpcError(grpc.StatusCode.UNAVAILABLE, Metadata(), Metadata(), "connection reset")
    worker = make_worker()
    got = worker_error(error, worker, Limits())
    assert "died or cannot be reached" in got.message
    assert got.code is ErrorCode.UNAVAILABLE
    worker.avoid.assert_called_once()
