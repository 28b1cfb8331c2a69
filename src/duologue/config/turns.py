"""Bounds of ordinary HTTP requests: chat completions, speech, transcriptions. They use no session slot."""

from __future__ import annotations

import msgspec


class TurnLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """At most ``max_running`` requests run, at most ``max_waiting`` more wait for one of them; the next one gets a 429.
    So does whoever exceeds ``requests_per_minute`` on the whole (null: no limit) and ``request_burst`` at once, all clients
    together: a request costs work even if it is given up at once.

    A request body may have ``max_body_bytes`` and must arrive within ``body_timeout_s``; all bodies that are held together
    may have ``max_held_bytes``. Longer recordings than ``max_audio_s`` and longer texts to read aloud than
    ``max_speech_chars`` are refused. A request ends with an error after ``request_timeout_s``, or when the engine has been
    silent for ``output_timeout_s``; a client that takes nothing for ``write_timeout_s`` is dropped. Event streams carry a
    comment when nothing was sent for ``keep_alive_s``. Output that a slow client has not taken holds up the stages from
    ``pause_bytes`` on, and fails the request beyond ``max_unread_bytes``.
    """

    max_running: int = 2
    max_waiting: int = 32
    requests_per_minute: int | None = 1_200
    request_burst: int = 100
    max_body_bytes: int = 25 * 1024 * 1024
    max_held_bytes: int = 128 * 1024 * 1024
    max_audio_s: float = 1_500.0
    max_speech_chars: int = 4_096
    body_timeout_s: float = 60.0
    request_timeout_s: float = 600.0
    output_timeout_s: float = 60.0
    write_timeout_s: float = 30.0
    keep_alive_s: float = 10.0
    pause_bytes: int = 1024 * 1024
    max_unread_bytes: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        for key in self.__struct_fields__:
            value = getattr(self, key)
            if (key == "max_waiting" and value == 0) or (key == "requests_per_minute" and value is None):
                continue
            if not value > 0:
                raise ValueError(f"{key} must be greater than 0, got {value!r}")
        if self.max_held_bytes < self.max_body_bytes:
            raise ValueError(
                f"max_held_bytes must be at least max_body_bytes ({self.max_body_bytes}), got {self.max_held_bytes}"
            )
        if self.max_unread_bytes <= self.pause_bytes:
            raise ValueError(
                f"max_unread_bytes must be greater than pause_bytes ({self.pause_bytes}), got {self.max_unread_bytes}"
            )
