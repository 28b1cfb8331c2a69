"""How set-up shows its progress: a bar on a terminal, plain lines in a log.

Rule kept here: displays only display. They see a label, a position and a total, and decide nothing.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Bars

_MEGABYTE = 1_000_000


class Progress(AbstractContextManager["Progress"], Protocol):
    """What set-up tells a display, in this order per wheel: `started`, any number of `moved`, `finished`.

    Used as a context manager around the whole set-up, so that a bar is taken down whatever happens.
    """

    def note(self, text: str) -> None:
        """Show one line of text."""

    def started(self, label: str, total_bytes: int) -> None:
        """A wheel is about to be fetched; `total_bytes` is an estimate and may be 0 (unknown)."""

    def moved(self, received_bytes: int) -> None:
        """So many bytes of the current wheel have arrived; never decreases within one wheel."""

    def finished(self) -> None:
        """The current wheel is here and its files are in the folder."""


class LineProgress(Progress):
    """Plain lines, at most one per quarter of a wheel, for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._label = ""
        self._total_bytes = 0
        self._quarters_shown = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def note(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def started(self, label: str, total_bytes: int) -> None:
        self._label, self._total_bytes, self._quarters_shown = label, total_bytes, 0
        size = f" ({total_bytes / _MEGABYTE:.0f} MB)" if total_bytes else ""
        self.note(f"fetching {label}{size}")

    def moved(self, received_bytes: int) -> None:
        if self._total_bytes == 0:
            return
        quarters = min(3, 4 * received_bytes // self._total_bytes)
        if quarters > self._quarters_shown:
            self._quarters_shown = quarters
            self.note(f"  {self._label}: {quarters * 25} %")

    def finished(self) -> None:
        self.note(f"  {self._label}: done")


class BarProgress(Progress):
    """One bar per wheel, for a terminal."""

    def __init__(self, console: Console) -> None:
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
        )
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self._bars)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def note(self, text: str) -> None:
        self._bars.console.print(text, highlight=False, markup=False)

    def started(self, label: str, total_bytes: int) -> None:
        self._bars.add_task(label, total=total_bytes or None)

    def moved(self, received_bytes: int) -> None:
        # pip may hold a wheel twice for a moment (its cache and its destination), so the count can overshoot.
        task = self._bars.tasks[-1]
        most = received_bytes if task.total is None else min(received_bytes, int(task.total))
        self._bars.update(task.id, completed=most)

    def finished(self) -> None:
        task = self._bars.tasks[-1]
        total_bytes = task.total if task.total is not None else task.completed
        self._bars.update(task.id, total=total_bytes, completed=total_bytes)


def choose_progress(stream: TextIO) -> Progress:
    """A bar if `stream` is a terminal, else plain lines."""
    if stream.isatty():
        return BarProgress(Console(file=stream))
    return LineProgress(stream)
