"""Whether a worker takes new work: open at first, closed for good when it drains."""

from baton.errors import BatonError, ErrorCode, Reason

_RETRY_AFTER_S = 1.0  # whoever knows of no other worker may find one by then


class Admission:
    """Made by a worker's shell, asked by its servicer."""

    def __init__(self, worker_name: str) -> None:
        self._worker_name = worker_name
        self._draining = False
        self._ending = False

    def drain(self) -> None:
        """Nothing new from now on. Idempotent."""
        self._draining = True

    def end(self) -> None:
        """What still runs is about to be aborted. Idempotent."""
        self._draining = self._ending = True

    @property
    def draining(self) -> bool:
        """Whether it has closed."""
        return self._draining

    def check(self) -> None:
        """For new work.

        Raises:
            BatonError: UNAVAILABLE with the reason DRAINING.
        """
        if self._draining:
            raise BatonError(
                ErrorCode.UNAVAILABLE,
                f"worker {self._worker_name} is being drained and takes no new requests; send it to another worker",
                _RETRY_AFTER_S,
                Reason.DRAINING,
            )

    def aborted(self, request_id: str, epoch: int) -> BatonError:
        """What an attempt that the engine core has aborted ends with."""
        attempt = f"request {request_id} (epoch {epoch})"
        if self._ending:
            message = (
                f"{attempt} was not through when worker {self._worker_name} had to stop; send it to another worker"
            )
            return BatonError(ErrorCode.UNAVAILABLE, message, _RETRY_AFTER_S, Reason.DRAINING)
        return BatonError(ErrorCode.CANCELLED, f"{attempt} was cancelled on worker {self._worker_name}")
