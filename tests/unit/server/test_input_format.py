"""Which input format a session will have once what it was sent is carried out."""

from __future__ import annotations

import msgspec
import pytest

from duologue.audio.format import AudioFormat
from duologue.config.session import SessionConfig, SessionPatch
from duologue.engine.duplex.commands import UpdateSession
from duologue.engine.duplex.events import ErrorRaised, SessionUpdated
from duologue.errors import ErrorCode
from duologue.server.input_format import InputFormatAhead

PCM = AudioFormat(encoding="pcm16", rate_hz=16_000)
FLOATS = AudioFormat(encoding="float32", rate_hz=16_000)


def change(format: AudioFormat, event_id: str | None = "e") -> UpdateSession:
    return UpdateSession(event_id=event_id, patch=SessionPatch(input_format=format))


def updated(format: AudioFormat) -> SessionUpdated:
    return SessionUpdated(config=msgspec.structs.replace(SessionConfig(), input_format=format))


def refused(event_id: str | None) -> ErrorRaised:
    return ErrorRaised(code=ErrorCode.INPUT_BACKPRESSURE, message="no", event_id=event_id)


def test_what_is_on_its_way_counts_before_it_is_announced() -> None:
    ahead = InputFormatAhead()
    assert ahead.after_all(PCM) == PCM
    ahead.sent(change(FLOATS))
    assert ahead.after_all(PCM) == FLOATS
    ahead.sent(UpdateSession(event_id="other", patch=SessionPatch(instructions="x")))
    assert ahead.after_all(PCM) == FLOATS, "settings that say nothing of it change nothing of it"
    ahead.told(updated(FLOATS))
    assert ahead.after_all(PCM) == PCM, "what was announced is for the session to say again"


def test_the_newest_of_several_changes_counts() -> None:
    ahead = InputFormatAhead()
    ahead.sent(change(FLOATS, "1"))
    ahead.sent(change(PCM, "2"))
    ahead.told(updated(FLOATS))
    assert ahead.after_all(FLOATS) == PCM


@pytest.mark.parametrize(("named", "given_up"), [("e", True), ("other", False), (None, False)])
def test_what_was_refused_is_not_waited_for(named: str | None, given_up: bool) -> None:
    ahead = InputFormatAhead()
    ahead.sent(change(FLOATS))
    ahead.told(refused(named))
    assert ahead.after_all(PCM) == (PCM if given_up else FLOATS)
