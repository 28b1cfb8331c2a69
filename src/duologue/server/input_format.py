"""The input format that a session will have once all that it was told so far is carried out.

An append of the duplex dialect may state its format. Whether the session has to change first is asked when it comes, and
a change that was sent before may still wait for the input in front of it.
"""

from __future__ import annotations

from msgspec import UNSET

from duologue.audio.format import AudioFormat
from duologue.engine.duplex.commands import UpdateSession
from duologue.engine.duplex.events import ErrorRaised, SessionEvent, SessionUpdated


class InputFormatAhead:
    """The newest change of the input format that is on its way; nothing if there is none."""

    __slots__ = ("_cause", "_format")

    def __init__(self) -> None:
        self._format: AudioFormat | None = None
        self._cause: str | None = None

    def after_all(self, announced: AudioFormat) -> AudioFormat:
        """The format of what is sent now. ``announced``: that of the newest settings that the session told."""
        return announced if self._format is None else self._format

    def sent(self, command: UpdateSession) -> None:
        """A change of settings is on its way."""
        wanted = command.patch.input_format
        if wanted is not UNSET:
            self._format, self._cause = wanted, command.event_id

    def told(self, event: SessionEvent) -> None:
        """The session answers: what it took is announced from now on, and what it refused will never be."""
        if isinstance(event, SessionUpdated):
            answered = event.config.input_format == self._format
        else:
            answered = isinstance(event, ErrorRaised) and event.event_id == self._cause
        if answered:
            self._format = self._cause = None
