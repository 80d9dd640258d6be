"""The engine: one thread that computes, and a bounded queue before it.

Each round it computes one piece of the prompt that is at the head of the queue, then one token of every running reply:
so a long prompt delays replies by one piece and not by all of it. As in the engines: the cache is consulted when a
prompt is begun, not when it arrives; the last prompt token is always computed; a block is cached once it is computed.
A prompt is begun only when there is room for it and its whole reply beside what is running, so nothing is taken back.

Whoever asks or tells something holds the lock; no lock is held while the model runs. The blocks that it works on are
pinned, so nobody can evict them meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from ..model import Decoder
from ..paged import KvPool
from .cache import Lease
from .counters import Counters
from .memory import Memory
from .request import Asked
from .said import Said
from .sampling import Sampler
from .tokens import Vocabulary


class OverloadedError(Exception):
    """The queue is full."""


@dataclass(frozen=True)
class EngineLimits:
    """Of the engine's queue and batch."""

    max_queued: int
    max_running: int
    # Of a prompt, computed in one round.
    prefill_tokens: int
    max_sessions: int


@dataclass(eq=False)
class Turn:
    """A request in the engine. Its owner reads under the engine's lock, or what never changes."""

    asked: Asked
    # Called from the engine's thread when something was said or it is over.
    tell: Callable[[], None]
    arrived: float
    lease: Lease = field(default_factory=Lease)
    # Taken blocks that are not cached yet.
    private: list[int] = field(default_factory=list)
    # Tokens whose keys and values are in the pool.
    computed: int = 0
    cached: int = 0
    said: Said = field(init=False)
    sampler: Sampler | None = None
    begun: float | None = None
    first: float | None = None
    aborted: bool = False
    done: bool = False
    failed: bool = False

    def __post_init__(self) -> None:
        self.said = Said(self.asked.stops)

    @property
    def finish(self) -> str:
        return "stop" if self.said.stopped else self.asked.finish

    @property
    def ttft_ms(self) -> float:
        return 1e3 * ((self.first or self.arrived) - self.arrived)

    @property
    def queue_ms(self) -> float:
        return 1e3 * ((self.begun or self.arrived) - self.arrived)


class Engine:
    """See the module's documentation."""

    def __init__(self, model: Decoder, pool: KvPool, vocabulary: Vocabulary, limits: EngineLimits) -> None:
        self.lock = threading.Lock()
        self.limits = limits
        self.block_tokens = pool.block_tokens
        self.memory = Memory(pool.blocks, pool.block_tokens, limits.max_sessions)
        self.counters = Counters()
        self.vocabulary = vocabulary
        self._model, self._pool = model, pool
        self._device = pool.device
        self._sayable = torch.tensor(vocabulary.sayable, device=self._device)
        self._work = threading.Condition(self.lock)
        self._waiting: deque[Turn] = deque()
        self._prefilling: Turn | None = None
        self._running: list[Turn] = []
        # Blocks that what has begun may still take.
        self._promised = 0
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running) + (self._prefilling is not None)

    @property
    def healthy(self) -> bool:
        return self._thread.is_alive()

    def submit(self, asked: Asked, tell: Callable[[], None]) -> Turn:
        turn = Turn(asked, tell, time.monotonic())
        with self.lock:
            if len(self._waiting) >= self.limits.max_queued or self._stopped:
                self.counters.refused += 1
                raise OverloadedError
            self.memory.arrived(asked.terms)
            self._waiting.append(turn)
            self._work.notify()
        return turn

    def abort(self, turn: Turn) -> None:
        """The client has left, or has heard enough."""
        with self.lock:
            turn.aborted = True
            self._work.notify()

    def stop(self) -> None:
        with self.lock:
            self._stopped = True
            self._work.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                while self._round():
                    pass
        finally:
            with self.lock:
                self._stopped = True
                turns = [*self._waiting, *self._running, *filter(None, [self._prefilling])]
                for turn in turns:
                    turn.failed = turn.done = True
            for turn in turns:
                turn.tell()

    def _round(self) -> bool:
        with self.lock:
            self._sweep()
            while not (self._stopped or self._waiting or self._prefilling or self._running):
                self._work.wait()
                self._sweep()
            if self._stopped:
                return False
            self._begin()
        if self._prefilling is not None:
            self._prefill(self._prefilling)
        if self._running:
            self._decode(list(self._running))
        return True

    def _begin(self) -> None:
        """Takes the head of the queue, if there is room for it."""
        if self._prefilling or not self._waiting or len(self._running) >= self.limits.max_running:
            return
        cache = self.memory.cache
        turn = self._waiting[0]
        wanted = self._blocks(turn.asked.prompt_tokens + turn.asked.output_tokens)
        # What is held already of this prompt is counted twice; that only makes it wait a little longer.
        if cache.pinned + cache.private + self._promised + wanted > cache.capacity:
            return
        self._prefilling = self._waiting.popleft()
        usable = (turn.asked.prompt_tokens - 1) // self.block_tokens
        turn.lease = cache.acquire(turn.asked.chain.names[:usable])
        turn.cached = turn.computed = len(turn.lease.nodes) * self.block_tokens
        turn.begun = time.monotonic()
        turn.sampler = Sampler(turn.asked.seed, turn.asked.temperature)
        self._promised += wanted - len(turn.lease.nodes)

    def _prefill(self, turn: Turn) -> None:
        chain = turn.asked.chain
        end = min(turn.computed + self.limits.prefill_tokens, turn.asked.prompt_tokens)
        with self.lock:
            table = self._table(turn, end)
        begun = time.monotonic()
        step = self._pool.prefill(table, turn.computed, end - turn.computed)
        tokens = torch.tensor(chain.tokens[turn.computed : end], device=self._device)
        hidden = self._model(tokens, self._pool, step)
        is_last = end == turn.asked.prompt_tokens
        token = self._choose(hidden[-1:], [turn])[0] if is_last else None
        with self.lock:
            # Choosing waits for the device; without it, on an accelerator, the time is that of asking for the work.
            self.counters.prefill_seconds += time.monotonic() - begun
            self._computed(turn, end)
            if token is not None:
                self._prefilling = None
                self._running.append(turn)
                turn.first = time.monotonic()
                self.counters.prefilled(turn.asked.prompt_tokens, turn.cached, turn.queue_ms, turn.ttft_ms)
                self._say(turn, token)
                self._sweep()
        if token is not None:
            turn.tell()

    def _decode(self, turns: list[Turn]) -> None:
        with self.lock:
            tables = [self._table(turn, turn.computed + 1) for turn in turns]
        lengths = [turn.computed for turn in turns]
        tokens = torch.tensor([turn.asked.chain.tokens[turn.computed] for turn in turns], device=self._device)
        hidden = self._model(tokens, self._pool, self._pool.decode(tables, lengths))
        chosen = self._choose(hidden, turns)
        with self.lock:
            for turn, token in zip(turns, chosen, strict=True):
                self._computed(turn, turn.computed + 1)
                self._say(turn, token)
            # Before anybody is told, so that a hint that follows an answer finds its turn over.
            self._sweep()
        for turn in turns:
            turn.tell()

    def _choose(self, hidden: torch.Tensor, turns: list[Turn]) -> list[int]:
        logits = self._model.logits(hidden)[:, self._sayable].float().cpu()
        picks = [turn.sampler.pick(row) for turn, row in zip(turns, logits, strict=True) if turn.sampler]
        return [self.vocabulary.sayable[pick] for pick in picks]

    def _say(self, turn: Turn, token: int) -> None:
        turn.asked.chain.push(token)
        self.counters.generation_tokens += 1
        stopped = turn.said.push(self.vocabulary.word(token))
        if stopped or turn.said.tokens >= turn.asked.output_tokens:
            turn.said.end()
            turn.done = True

    def _table(self, turn: Turn, tokens: int) -> list[int]:
        """The blocks of a turn's first ``tokens`` tokens, taken as far as they were missing."""
        while len(turn.lease.nodes) + len(turn.private) < self._blocks(tokens):
            block = self.memory.take(1e3 * time.monotonic())
            assert block is not None, "room was promised when it began"
            self._promised -= 1
            turn.private.append(block)
        return turn.lease.blocks + turn.private

    def _computed(self, turn: Turn, tokens: int) -> None:
        """Caches the blocks that are full now."""
        turn.computed = tokens
        names = turn.asked.chain.names
        while turn.private and (len(turn.lease.nodes) + 1) * self.block_tokens <= tokens:
            at = len(turn.lease.nodes)
            self.memory.cache.store(turn.lease, names[at], turn.private.pop(0))

    def _sweep(self) -> None:
        """Lets go of what is over."""
        over = [turn for turn in [*self._running, self._prefilling] if turn and (turn.done or turn.aborted)]
        for turn in over:
            if turn is self._prefilling:
                self._prefilling = None
            else:
                self._running.remove(turn)
            self._finish(turn)
        for turn in [turn for turn in self._waiting if turn.aborted]:
            self._waiting.remove(turn)
            self.counters.aborted += 1
            self.memory.finished(1e3 * time.monotonic(), turn.asked.terms, turn.lease, [], 0)

    def _finish(self, turn: Turn) -> None:
        cache, asked = self.memory.cache, turn.asked
        held = len(turn.lease.nodes) + len(turn.private)
        self._promised -= self._blocks(asked.prompt_tokens + asked.output_tokens) - held
        for block in turn.private:
            cache.give_back(block)
        turn.private = []
        if turn.done:
            self.counters.completed += 1
            self.counters.ran_out += turn.finish == "length"
        else:
            self.counters.aborted += 1
        chain = asked.chain.names[: len(turn.lease.nodes)]
        history = asked.prompt_tokens + turn.said.tokens
        self.memory.finished(1e3 * time.monotonic(), asked.terms, turn.lease, chain, history)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)
