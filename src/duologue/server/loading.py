"""What a person sees while the server loads its model: on a terminal a line that changes, elsewhere a line per step.

Rules kept here: standard error only (the first line of standard output says where the server listens), and nothing once
the server listens or has failed.
"""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.status import Status


class Loading:
    """Called with each thing that is about to be loaded; a context whose end takes the line away."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        self._status: Status | None = None

    def __enter__(self) -> Loading:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.done()

    def __call__(self, what: str) -> None:
        text = f"duologue: loading {what}"
        if not self._console.is_terminal:
            self._console.print(text)
        elif self._status is None:
            self._status = self._console.status(text)
            self._status.start()
        else:
            self._status.update(text)

    def done(self) -> None:
        """Everything is loaded, or will not be."""
        if self._status is not None:
            self._status.stop()
            self._status = None
