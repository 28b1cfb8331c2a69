"""Control operations under way, and their answers.

Rule kept here: an operation is answered exactly once. Whoever asks may lose patience and ask again under the same id: while
the first has no answer it is the same operation; after that it is carried out again, which does no harm (all but opening are
idempotent).
"""

from __future__ import annotations

from duologue.engine.messages import ResultMessage
from duologue.engine.orchestrator import MessageSink
from duologue.errors import ErrorCode


class ControlOperations:
    """Answers go to ``sink``."""

    __slots__ = ("_open", "_sink")

    def __init__(self, sink: MessageSink) -> None:
        self._sink = sink
        self._open: dict[str, None] = {}

    def __len__(self) -> int:
        """How many have no answer yet."""
        return len(self._open)

    def begin(self, control_id: str) -> bool:
        """One has arrived; false if it is under way already."""
        if control_id in self._open:
            return False
        self._open[control_id] = None
        return True

    def succeed(self, control_id: str, value: object) -> None:
        """Answer it; nothing happens if it has its answer."""
        self._answer(ResultMessage(control_id=control_id, value=value))

    def refuse(self, control_id: str, code: ErrorCode, message: str) -> None:
        """The same with the reason why not."""
        self._answer(ResultMessage(control_id=control_id, error_code=code.value, error_message=message))

    def _answer(self, result: ResultMessage) -> None:
        if result.control_id in self._open:
            del self._open[result.control_id]
            self._sink.put_nowait(result)
