"""The tokens that the newest step has drawn, kept on the device: the input of the next one, and on their way out."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.request import Request
from engine.upload import upload

_HOST_COPIES = 2  # one is read while the step behind it is in flight


class TokensOnTheWay(NamedTuple):
    """A step's tokens in host memory, once `event` has passed."""

    token_ids: Tensor  # [requests] int64
    event: torch.cuda.Event | None  # None on a CPU, where they are there at once

    def wait(self) -> None:
        """Returns when the device has run the step."""
        if self.event:
            self.event.synchronize()


class DrawnTokens:
    """For one stream. What is read here was enqueued before, so no token's way to the host is waited for."""

    def __init__(self, max_seqs: int, device: torch.device) -> None:
        self._device = device
        self._tokens = torch.zeros(2 * max_seqs, dtype=torch.int64, device=device)  # drawn ones, then the host's
        self._max_seqs = max_seqs
        self._requests: list[Request] = []
        on_gpu = device.type == "cuda"
        self._hosts = [torch.zeros(max_seqs, dtype=torch.int64, pin_memory=on_gpu) for _ in range(_HOST_COPIES)]
        self._events = [torch.cuda.Event() if on_gpu else None for _ in range(_HOST_COPIES)]
        self._turn = 0

    def keep(self, token_ids: Tensor, requests: list[Request]) -> TokensOnTheWay:
        """Takes a step's draws; what it returns is good until the call after the next one.

        Args:
            token_ids: [requests] int64, on the device
        """
        self._requests = requests
        count = len(requests)
        self._tokens[:count].copy_(token_ids)
        return self._send(count)

    def _send(self, count: int) -> TokensOnTheWay:
        self._turn = (self._turn + 1) % _HOST_COPIES
        host, event = self._hosts[self._turn], self._events[self._turn]
        host[:count].copy_(self._tokens[:count], non_blocking=True)
        if event:
            event.record()
        return TokensOnTheWay(host[:count], event)

    def nothing(self) -> TokensOnTheWay:
        """For a step that draws none: the draws of the one before stay."""
        return self._send(0)

    def newest(self, requests: list[Request], out: Tensor) -> None:
        """Writes the newest token of each request to `out`: [requests] int64, on the device."""
        if requests == self._requests:  # the same objects: the newest tokens are those drawn for them
            out.copy_(self._tokens[: len(requests)])
            return
        rows = self._rows()
        sources, token_ids = [], []
        for row, request in enumerate(requests):
            unknown = request.num_unknown_tokens
            sources.append(rows[request] if unknown else self._max_seqs + row)
            token_ids.append(0 if unknown else request.tokens[-1])
        self._tokens[self._max_seqs : self._max_seqs + len(requests)] = upload(token_ids, self._device)
        torch.index_select(self._tokens, 0, upload(sources, self._device), out=out)

    def insert(self, late: Sequence[tuple[int, Request]], token_ids: Tensor) -> None:
        """Puts the newest, unknown token of each request at its place in `token_ids`: [tokens] int64, on the device."""
        if late:
            rows = self._rows()
            sources = upload([rows[request] for _, request in late], self._device)
            places = upload([place for place, _ in late], self._device)
            token_ids.index_copy_(0, places, self._tokens.index_select(0, sources))

    def _rows(self) -> dict[Request, int]:
        return {request: row for row, request in enumerate(self._requests)}
