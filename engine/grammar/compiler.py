"""Compiles grammars on threads beside the engine's loop, and keeps what was compiled."""

import dataclasses
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from baton.errors import BatonError, ErrorCode, invalid
from baton.structured import StructuredOutput
from engine.grammar.base import CompiledGrammar, GrammarBackend

logger = logging.getLogger(__name__)

_RETRY_AFTER_S = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class CompilerLimits:
    """What grammars may cost one engine core."""

    compile_s: float = 10.0  # for one grammar
    num_threads: int = 2  # that compile at once
    num_stuck: int = 4  # threads beyond `compile_s`, which nothing can end: left alone, up to so many
    cache_bytes: int = 256 << 20


class Compilation:
    """One grammar on its way. `result` is for the core's thread; the others belong to the compiler."""

    def __init__(self, structured: StructuredOutput, result: CompiledGrammar | BatonError | None = None) -> None:
        self.structured = structured
        self.result = result  # None: not yet
        self.started_s: float | None = None  # monotonic; set by its thread, as `outcome`
        self.outcome: CompiledGrammar | BatonError | None = None


class GrammarCompiler:
    """All methods are for the core's thread, and return at once."""

    def __init__(self, make_backend: Callable[[], GrammarBackend], limits: CompilerLimits) -> None:
        """`make_backend` is called on a thread when the first grammar comes, and again if it raised."""
        self._make_backend = make_backend
        self._limits = limits
        self._backend: GrammarBackend | None = None
        self._backend_lock = threading.Lock()
        self._cache: OrderedDict[StructuredOutput, CompiledGrammar] = OrderedDict()  # least recently used first
        self._cached_bytes = 0
        self._queued: dict[StructuredOutput, Compilation] = {}
        self._running: dict[StructuredOutput, Compilation] = {}
        self._stuck: list[Compilation] = []

    def start(self, structured: StructuredOutput) -> Compilation:
        """The compilation of a grammar: done if an equal one is cached, shared if one is under way."""
        if structured in self._cache:
            self._cache.move_to_end(structured)
            return Compilation(structured, self._cache[structured])
        under_way = self._running.get(structured) or self._queued.get(structured)
        if under_way is None:
            under_way = self._queued[structured] = Compilation(structured)
            self.poll()
        return under_way

    def poll(self) -> None:
        """Takes over what is done, gives up what takes too long, and starts what waits."""
        for compilation in list(self._running.values()):
            self._look_at(compilation)
        self._stuck = [compilation for compilation in self._stuck if compilation.outcome is None]
        while self._queued and len(self._running) < self._limits.num_threads:
            compilation = self._queued.pop(next(iter(self._queued)))
            if len(self._stuck) < self._limits.num_stuck:
                self._running[compilation.structured] = compilation
                threading.Thread(target=self._compile, args=(compilation,), name="grammar", daemon=True).start()
            else:
                compilation.result = BatonError(
                    ErrorCode.RESOURCE_EXHAUSTED,
                    f"structured: {len(self._stuck)} grammars have compiled for more than {self._limits.compile_s:g} s "
                    "each and no other is begun; try again later, or restart the worker",
                    _RETRY_AFTER_S,
                )

    def _look_at(self, compilation: Compilation) -> None:
        structured, limit_s = compilation.structured, self._limits.compile_s
        if compilation.outcome is not None:
            compilation.result = compilation.outcome
            if isinstance(compilation.outcome, CompiledGrammar):
                self._keep(structured, compilation.outcome)
        elif compilation.started_s is not None and time.monotonic() - compilation.started_s > limit_s:
            compilation.result = invalid(
                f"structured.{structured.kind}: got a grammar that takes more than {limit_s:g} s to compile; make it "
                "smaller"
            )
            logger.warning("a grammar of %d bytes takes more than %g s to compile", structured.num_bytes, limit_s)
            self._stuck.append(compilation)
        else:
            return
        del self._running[structured]

    def _keep(self, structured: StructuredOutput, compiled: CompiledGrammar) -> None:
        self._cache[structured] = compiled
        self._cached_bytes += compiled.num_bytes
        while self._cached_bytes > self._limits.cache_bytes:
            _, dropped = self._cache.popitem(last=False)
            self._cached_bytes -= dropped.num_bytes

    def _compile(self, compilation: Compilation) -> None:
        """On a thread of its own."""
        try:
            with self._backend_lock:
                self._backend = self._backend or self._make_backend()
            compilation.started_s = time.monotonic()
            compilation.outcome = self._backend.compile(compilation.structured)
        except BatonError as error:
            compilation.outcome = error
        except Exception as error:  # the request must end, whatever the library does
            logger.exception("compiling a grammar failed")
            compilation.outcome = BatonError(ErrorCode.INTERNAL, f"structured: the compiler failed: {error!r}")
