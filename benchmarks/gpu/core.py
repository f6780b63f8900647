"""An aggregated engine core without its process, on a GPU with dummy weights, and what its client would see."""

import gc
import random
import time

import torch

from baton.load_options import LoadFormat
from baton.types import Role, SamplingParams, WorkerRef
from benchmarks.record import ROOT
from engine.config import CacheConfig, EngineConfig, SchedulerConfig
from engine.context import EngineContext
from engine.messages import AddLocal, Event, Tokens
from engine.roles.local import LocalRole


class Core:
    """The engine core's loop, turn by turn. Prefix caching is off, and no request meets an end of sequence."""

    def __init__(self, model: str, max_tokens: int, max_model_len: int, overlap: bool, max_seqs: int = 256) -> None:
        """`max_tokens` of one step; the pool takes what memory is left."""
        self.num_told = 0
        self._num_added = 0
        self._rng = random.Random(0)
        config = EngineConfig(
            str(ROOT / "benchmarks" / "models" / model),
            Role.AGGREGATED,
            WorkerRef("bench", "1"),
            device="cuda",
            dtype="bfloat16",
            max_model_len=max_model_len,
            load_format=LoadFormat.DUMMY,
            cache=CacheConfig(enable_prefix_caching=False, swap_space_bytes=0),
            scheduler=SchedulerConfig(max_num_batched_tokens=max_tokens, max_num_seqs=max_seqs, overlap_steps=overlap),
        )
        self.role = LocalRole(EngineContext(config, self._receive))

    def _receive(self, events: list[Event]) -> None:
        self.num_told += sum(len(event.token_ids) for event in events if isinstance(event, Tokens))

    def close(self) -> None:
        """Gives the memory back; weights and pool hang in cycles."""
        self.role.close()
        del self.role
        gc.collect()
        torch.cuda.empty_cache()

    def add(self, num_in: int, num_out: int, temperature: float = 0.0) -> None:
        """A request of random tokens: equal ones run faster, since a GPU then switches fewer bits."""
        prompt = tuple(self._rng.choices(range(1000, 100_000), k=num_in))
        sampling = SamplingParams(temperature=temperature, seed=self._num_added, max_tokens=num_out)
        self.role.handle(AddLocal(str(self._num_added), 1, prompt, sampling))
        self._num_added += 1

    def turn(self) -> bool:
        """Whether anything ran; what it told has reached the client."""
        ran = self.role.step()
        self.role.context.flush()
        return ran

    def turn_ms(self) -> float:
        """How long a turn takes."""
        start = time.perf_counter()
        self.turn()
        return (time.perf_counter() - start) * 1e3

    def finish(self) -> None:
        """Runs until nothing is left."""
        while self.turn():
            pass
