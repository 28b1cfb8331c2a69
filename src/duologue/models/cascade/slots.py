"""Which conversation is resident where in a language model, who is at work, and what is made ready between turns.

Rules kept here: real work comes first: what is made ready gives way to it within 32 tokens, and is never waited for.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Sequence

from duologue.models.cascade.chat import ChatMessage, GenerationError, Generator

_BETWEEN_S = 0.2  # how long nobody must have worked before a conversation is rolled over


class Slots:
    """Which conversation is resident in which slot of the model: the least recently used one gives way."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._slots: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, key: str) -> int:
        """The slot of ``key``."""
        with self._lock:
            if key in self._slots:
                self._slots.move_to_end(key)
            elif len(self._slots) < self._count:
                self._slots[key] = min(set(range(self._count)) - set(self._slots.values()))
            else:
                _, slot = self._slots.popitem(last=False)
                self._slots[key] = slot
            return self._slots[key]

    def free(self, key: str) -> None:
        """The conversation of ``key`` will not go on: its slot is the next to be taken."""
        with self._lock:
            self._slots.pop(key, None)

    def used(self, slot: int) -> bool:
        """Whether a conversation is resident in ``slot``."""
        with self._lock:
            return slot in self._slots.values()


class Work:
    """Whether anybody waits for an answer; a context for whoever does."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self.closed = False

    @property
    def busy(self) -> bool:
        return self._running > 0 or self.closed

    def __enter__(self) -> None:
        with self._changed:
            self._running += 1
            self._changed.notify_all()

    def __exit__(self, *exc: object) -> None:
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    def wait_idle(self, seconds: float) -> bool:
        """Wait until nobody works, and then for ``seconds`` more; false if somebody began to."""
        with self._changed:
            self._changed.wait_for(lambda: self._running == 0 or self.closed)
            return not self._changed.wait_for(lambda: self.busy, timeout=seconds)

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify_all()


class RollOvers:
    """Contexts that will be too full for the next turn: shortened while nobody waits for an answer.

    One per slot. Whatever needs its slot abandons it; any answer of another slot makes it wait, within 32 tokens.
    """

    def __init__(self, model: Generator, work: Work) -> None:
        self._model = model
        self._work = work
        self._lock = threading.Lock()
        self._planned: dict[int, threading.Event] = {}

    def plan(self, slot: int, messages: Sequence[ChatMessage]) -> None:
        """Compute ``messages`` into ``slot`` as soon as the language model has nothing else to do."""
        stop = threading.Event()
        with self._lock:
            self._planned[slot] = stop
        threading.Thread(target=self._run, args=(slot, messages, stop), name="roll-over", daemon=True).start()

    def abandon(self, slot: int) -> None:
        """The slot is needed now."""
        with self._lock:
            stop = self._planned.pop(slot, None)
        if stop is not None:
            stop.set()

    def close(self) -> None:
        """Nothing is begun any more."""
        with self._lock:
            for stop in self._planned.values():
                stop.set()
            self._planned.clear()

    def _run(self, slot: int, messages: Sequence[ChatMessage], stop: threading.Event) -> None:
        while not stop.is_set() and not self._work.closed:
            if not self._work.wait_idle(_BETWEEN_S) or stop.is_set():
                continue
            gave_way = threading.Event()

            def cancelled(gave_way: threading.Event = gave_way) -> bool:
                if stop.is_set() or self._work.busy:
                    gave_way.set()
                return gave_way.is_set()

            with contextlib.suppress(GenerationError):
                self._model.prefill(slot, messages, cancelled=cancelled)
            if not gave_way.is_set():
                break
