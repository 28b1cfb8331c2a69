"""Frames of the detector: what of them the turn classifier hears, and how those that are under way are voided.

Rule kept here: the clock of frames runs on, whatever is voided, so that every position stays what it was.
"""

from __future__ import annotations

from duologue.engine.duplex.core.endpoint import FRAME_SAMPLES
from duologue.engine.duplex.core.state import DETECTOR_RATE_HZ, FRAME_BYTES, SessionState

RECENT_BYTES = 8 * DETECTOR_RATE_HZ * 2
"""What the turn classifier looks at."""


def void(s: SessionState) -> None:
    """Void outstanding verdicts: the next frame starts afresh, on the same clock."""
    detection = s.detection
    endpointer = detection.endpointer
    detection.classify = detection.ahead = None
    if endpointer is None:
        return
    endpointer.position = detection.received_frames
    endpointer.reset_speech()
    detection.scores.clear()
    detection.in_flight = None
    detection.in_flight_frames = 0
    del detection.buffer[: len(detection.buffer) // FRAME_BYTES * FRAME_BYTES]
    detection.reset = True


def recent_audio(s: SessionState, end: int, start: int) -> bytes:
    """The last 8 s before ``end`` (samples at the model's rate), not before ``start``, at 16 kHz."""
    if s.audio.rate_hz == DETECTOR_RATE_HZ:
        low = max(start, end - RECENT_BYTES // 2, s.audio.floor)
        return s.audio.copy(low, end)
    frames = s.detection.endpointer.position if s.detection.endpointer is not None else 0
    behind = (s.detection.received_frames - frames) * FRAME_SAMPLES * 2 + len(s.detection.buffer) % FRAME_BYTES
    recent = s.detection.recent
    wanted = min(RECENT_BYTES, (end - start) * DETECTOR_RATE_HZ // s.audio.rate_hz * 2)
    stop = max(0, len(recent) - behind)
    return bytes(recent[max(0, stop - wanted) : stop])
