"""Logs: silent until asked for, structured, and free of audio, speech and keys."""

import base64
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.log import ROOT, configure_logging, init_logger, redact


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger(ROOT)
    before = (list(root.handlers), root.level, root.propagate)
    yield
    root.handlers[:], root.level, root.propagate = before[0], before[1], before[2]


def json_lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_silent_by_default(capfd: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger(ROOT)
    root.propagate = False  # without the handlers that the test runner adds
    init_logger("duologue.test").error("nobody asked")
    assert capfd.readouterr() == ("", "")


def test_json_lines_hold_the_fields() -> None:
    stream = io.StringIO()
    configure_logging("info", json=True, stream=stream)
    logger = init_logger("duologue.test")
    logger.debug("not shown")
    logger.info("turn %d ended", 3, extra={"session_id": "duplex-1", "delay_ms": 12.5, "place": {"stage": 1}})
    [line] = json_lines(stream)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "duologue.test",
        "message": "turn 3 ended",
        "session_id": "duplex-1",
        "delay_ms": 12.5,
        "place": {"stage": 1},
    }


def test_lines_for_people() -> None:
    stream = io.StringIO()
    configure_logging("debug", stream=stream)
    init_logger("duologue.test").warning("slow", extra={"session_id": "duplex-1", "delay_ms": 900})
    line = stream.getvalue()
    assert "WARNING duologue.test [duplex-1] slow delay_ms=900" in line
    assert line.count("\n") == 1


def test_configuring_again_replaces_the_set_up() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure_logging("info", stream=first)
    configure_logging("error", json=True, stream=second)
    logger = init_logger("duologue.test")
    logger.info("too low")
    logger.error("once")
    assert first.getvalue() == ""
    assert len(json_lines(second)) == 1


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="'loud' is not known: use debug"):
        configure_logging("loud")


def test_loggers_live_under_the_package() -> None:
    assert init_logger("duologue.engine").name == "duologue.engine"
    assert init_logger("my_plugin").name == "duologue.my_plugin"
    assert init_logger("duologue.engine") is init_logger("duologue.engine")
    assert len(init_logger("duologue.engine").filters) == 1


SPEECH = "my pin is four two"
AUDIO = bytes(range(256)) * 4
TEXT = base64.b64encode(AUDIO).decode()
KEY = "sk-abcdefghijklmnop123456"


class Command:
    def __repr__(self) -> str:
        return f"AppendAudio(audio={AUDIO!r}, transcript={SPEECH!r}, event_id='e1')"


LEAKS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("got %s", (AUDIO,), {}),
    ("got %r", (bytearray(AUDIO),), {}),
    ("got %s", (TEXT,), {}),
    ("got %s", ({"audio": TEXT[:20], "transcript": SPEECH},), {}),
    ("got %(transcript)s and %(audio)s", ({"transcript": SPEECH, "audio": AUDIO},), {}),
    ("got %s", ([("x", {"Authorization": f"Bearer {KEY}"})],), {}),
    ("got %s", (Command(),), {}),
    (f"got {Command()!r}", (), {}),
    (f"got {{'transcript': '{SPEECH}', 'api_key': '{KEY}'}}", (), {}),
    (f"transcript: {SPEECH}\nnext line", (), {}),
    (f"Authorization: Basic {KEY}", (), {}),
    (f"GET /v1/realtime?token={KEY}&model=x", (), {}),
    (f"header Bearer {KEY[3:]}", (), {}),
    (f"the key {KEY} is wrong", (), {}),
    ("fields", (), {"audio": TEXT[:20], "input_transcript": SPEECH, "x-api-key": KEY, "access_token": KEY}),
    ("fields", (), {"deep": {"list": [{"transcript": SPEECH}, AUDIO]}}),
    ("fields", (), {"event": Command()}),
    ("does not fit %d %d", (AUDIO, SPEECH), {}),
    ("array %s", (np.frombuffer(AUDIO, np.uint8),), {}),
]


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize(("message", "arguments", "fields"), LEAKS)
def test_nothing_leaks(
    message: str,
    arguments: tuple[Any, ...],
    fields: dict[str, Any],
    as_json: bool,
    capfd: pytest.CaptureFixture[str],
) -> None:
    stream = io.StringIO()
    configure_logging("info", json=as_json, stream=stream)
    init_logger("duologue.test").info(message, *arguments, extra=fields)
    text = stream.getvalue() + "".join(capfd.readouterr())
    assert "INFO" in text.upper()
    for secret in (SPEECH, "four two", KEY, KEY[3:], TEXT[:20], "\\x10", "16, 17", "[ 0 "):
        assert secret not in text


def test_exceptions_are_shown_without_what_they_quote() -> None:
    stream = io.StringIO()
    configure_logging("info", json=True, stream=stream)
    logger = init_logger("duologue.test")
    try:
        raise ValueError(f"can't decode audio={AUDIO!r} or {TEXT}")
    except ValueError:
        logger.exception("decoding failed")
    [line] = json_lines(stream)
    assert "ValueError: can't decode" in line["exception"]
    assert "test_log.py" in line["exception"]
    assert "\\x10" not in stream.getvalue() and TEXT[:20] not in line["exception"].split("ValueError")[1]


def test_a_handler_of_the_application_sees_no_more(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        init_logger("duologue.test").info("got %s", AUDIO, extra={"transcript": SPEECH})
    [record] = caplog.records
    assert record.getMessage() == "got <1024 bytes>"
    assert record.__dict__["transcript"] == "[redacted]"


def test_what_is_harmless_stays() -> None:
    harmless = {
        "session_id": "duplex-0123456789abcdef0123456789abcdef",
        "digest": "a" * 64,
        "audio_bytes": 2_560,
        "audio": 2_560,
        "token": None,
        "tokens": 12,
        "path": "/srv/duologue/models/silero_vad.onnx",
        "flag": True,
    }
    assert redact(harmless) == harmless
    for text in ("max_tokens=12", "audio: 320 bytes", "100 % of 3 stages", "first audio after 350 ms"):
        assert redact(text) == text


def test_percent_signs_survive() -> None:
    stream = io.StringIO()
    configure_logging("info", json=True, stream=stream)
    logger = init_logger("duologue.test")
    logger.info("load 100 %")
    logger.info("load %d %%", 100)
    assert [line["message"] for line in json_lines(stream)] == ["load 100 %", "load 100 %"]


@given(data=st.binary(min_size=64, max_size=400), before=st.text(max_size=5), size=st.integers(0, 9_000))
def test_base64_never_passes(data: bytes, before: str, size: int) -> None:
    encoded = base64.b64encode(data).decode()
    shown = redact(f"{before} {encoded} {'x ' * size}")
    assert isinstance(shown, str)
    assert encoded[:80] not in shown
    assert len(shown) < 4_500
