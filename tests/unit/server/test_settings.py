"""Session objects as patches: both spellings, formats, nulls, and refusals that name the field."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import UNSET

from duologue.audio.format import AudioFormat
from duologue.config.session import SemanticVad, ServerVad, SessionConfig, SessionPatch, merge
from duologue.errors import ClientFault, ErrorCode
from duologue.server.models import ModelCard, ModelNames
from duologue.server.settings import SettingsReader
from duologue.wire import Dialect
from duologue.wire.objects import Session

NAMES = ModelNames([ModelCard(id="m1"), ModelCard(id="m2")])
BASE = SessionConfig(model="m1", turn_detection=SemanticVad())


def patch(session: object, dialect: Dialect = "ga", current: SessionConfig = BASE) -> SessionPatch:
    decoded = msgspec.json.decode(msgspec.json.encode(session), type=Session)
    return SettingsReader(dialect, NAMES).patch(decoded, current)


def refused(session: object, dialect: Dialect = "ga") -> ClientFault:
    with pytest.raises(ClientFault) as caught:
        patch(session, dialect)
    return caught.value


def test_what_is_absent_is_unchanged() -> None:
    assert patch({}) == SessionPatch()
    assert patch({}, "duplex") == SessionPatch()
    assert patch({"type": "realtime", "tracing": "auto", "truncation": "auto", "include": None}) == SessionPatch()


def test_the_full_update_of_a_stock_client() -> None:
    change = patch(
        {
            "type": "realtime",
            "model": "gpt-realtime",
            "output_modalities": ["audio"],
            "instructions": "Be kind.",
            "max_output_tokens": "inf",
            "tool_choice": "auto",
            "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
            "audio": {
                "input": {
                    "format": {"type": "audio/pcm", "rate": 24000},
                    "noise_reduction": {"type": "near_field"},
                    "transcription": {"model": "gpt-4o-transcribe", "language": "en"},
                    "turn_detection": {"type": "semantic_vad", "eagerness": "high", "interrupt_response": True},
                },
                "output": {"format": {"type": "audio/pcmu"}, "voice": {"id": "v"}, "speed": 1.25},
            },
        }
    )
    config = merge(BASE, change)
    assert config.model == "m1"
    assert config.turn_detection == SemanticVad(eagerness="high")
    assert config.output_format == AudioFormat(encoding="pcmu", rate_hz=8000)
    assert (config.voice, config.speed, config.language) == ("v", 1.25, "en")
    assert config.tools[0].parameters == '{"type":"object"}'
    assert config.max_output_tokens is None


def test_the_flat_update_of_the_duplex_client() -> None:
    change = patch(
        {
            "model": "m1",
            "modalities": ["audio", "text"],
            "input_audio_format": "pcm_f32le",
            "output_audio_format": "pcm16",
            "sample_rate_hz": 16000,
            "audio": {"input": {"sample_rate_hz": 16000}, "output": {"sample_rate_hz": 22050}},
            "turn_detection": None,
            "playback_commit_policy": "ack_only",
            "overlap_policy": "listen_only",
            "idle_timeout_s": 30,
            "extra_body": {"auto_response": True, "force_listen_count": 0},
        },
        "duplex",
    )
    config = merge(BASE, change)
    assert config.input_format == AudioFormat(encoding="float32", rate_hz=16000)
    assert config.output_format == AudioFormat(encoding="pcm16", rate_hz=22050)
    assert config.turn_detection is None
    assert (config.output_modality, config.auto_response) == ("audio", True)
    assert config.extra == {"force_listen_count": 0}
    assert config.playback_commit_policy == "ack_only"


def test_duplex_settings_mean_nothing_on_ga() -> None:
    assert patch({"overlap_policy": "listen_only", "auto_response": True, "extra_body": {"x": 1}}) == SessionPatch()


def test_a_format_without_a_rate_takes_the_dialects_default() -> None:
    assert patch({"input_audio_format": "pcm16"}).input_format == AudioFormat(encoding="pcm16", rate_hz=24000)
    assert patch({"input_audio_format": "pcm16"}, "duplex").input_format == AudioFormat(encoding="pcm16", rate_hz=16000)
    assert patch({"input_audio_format": "g711_alaw"}).input_format == AudioFormat(encoding="pcma", rate_hz=8000)


def test_a_rate_without_a_format_keeps_the_encoding() -> None:
    current = msgspec.structs.replace(BASE, input_format=AudioFormat(encoding="float32", rate_hz=16000))
    assert patch({"sample_rate_hz": 48000}, "duplex", current).input_format == AudioFormat(
        encoding="float32", rate_hz=48000
    )


def test_null_turns_off_and_absent_keeps() -> None:
    off = patch({"audio": {"input": {"turn_detection": None, "transcription": None}}})
    assert (off.turn_detection, off.transcription) == (None, False)
    assert patch({"audio": {"input": {"turn_detection": {"type": "none"}}}}).turn_detection is None
    assert patch({"audio": {"input": {}}}).turn_detection is UNSET


def test_a_partial_detector_keeps_the_rest() -> None:
    current = msgspec.structs.replace(BASE, turn_detection=ServerVad(threshold=0.7))
    change = patch({"turn_detection": {"silence_duration_ms": 800, "idle_timeout_ms": None}}, "ga", current)
    assert merge(current, change).turn_detection == ServerVad(threshold=0.7, silence_duration_ms=800)


@pytest.mark.parametrize("kind", [ServerVad, SemanticVad])
def test_null_within_a_detector_is_the_default_of_that_field(kind: type[ServerVad | SemanticVad]) -> None:
    set_ = {"threshold": 0.7, "prefix_padding_ms": 100, "create_response": False, "interrupt_response": False}
    own = {"silence_duration_ms": 800, "idle_timeout_ms": 9_000} if kind is ServerVad else {"eagerness": "low"}
    current = msgspec.structs.replace(BASE, turn_detection=kind(**set_, **own))
    for name in ("silence_duration_ms", "idle_timeout_ms", "eagerness", *set_):
        merged = merge(current, patch({"turn_detection": {name: None}}, "ga", current)).turn_detection
        assert isinstance(merged, kind)
        expected = {field: value for field, value in {**set_, **own}.items() if field != name}
        assert merged == kind(**expected)


def test_an_idle_timeout_of_nothing_is_refused() -> None:
    current = msgspec.structs.replace(BASE, turn_detection=ServerVad())
    with pytest.raises(ClientFault, match="idle_timeout_ms must be between 1000 and 600000, got 0"):
        merge(current, patch({"turn_detection": {"idle_timeout_ms": 0}}, "ga", current))


def test_modalities_that_say_text_alone() -> None:
    assert patch({"output_modalities": ["text", "text"]}).output_modality == "text"


@pytest.mark.parametrize(
    ("session", "code", "param"),
    [
        ({"output_modalities": []}, ErrorCode.INVALID_SESSION_CONFIG, "session.output_modalities"),
        (
            {"audio": {"output": {"format": {"type": "audio/pcm", "rate": 0}}}},
            ErrorCode.UNSUPPORTED_AUDIO_FORMAT,
            "session.audio.output.format",
        ),
        ({"type": "transcription"}, ErrorCode.UNSUPPORTED, "session.type"),
        ({"model": "m3"}, ErrorCode.MODEL_NOT_FOUND, "session.model"),
        ({"output_modalities": ["video"]}, ErrorCode.INVALID_SESSION_CONFIG, "session.output_modalities"),
        ({"max_output_tokens": "many"}, ErrorCode.INVALID_SESSION_CONFIG, "session.max_output_tokens"),
        ({"instructions": "x" * 300_000}, ErrorCode.INVALID_SESSION_CONFIG, "session.instructions"),
        ({"tools": [{"type": "mcp"}]}, ErrorCode.UNSUPPORTED, "session.tools[0].type"),
        ({"tools": [{"type": "function"}]}, ErrorCode.INVALID_SESSION_CONFIG, "session.tools[0].name"),
        ({"tool_choice": {"type": "mcp", "name": "f"}}, ErrorCode.UNSUPPORTED, "session.tool_choice"),
        (
            {"audio": {"input": {"format": {"type": "audio/mp3"}}}},
            ErrorCode.UNSUPPORTED_AUDIO_FORMAT,
            "session.audio.input.format",
        ),
        (
            {"audio": {"input": {"format": {"type": "audio/pcm", "rate": 4000}}}},
            ErrorCode.UNSUPPORTED_AUDIO_FORMAT,
            "session.audio.input.format",
        ),
        (
            {"turn_detection": {"type": "semantic_vad", "eagerness": "extreme"}},
            ErrorCode.UNSUPPORTED_TURN_DETECTION,
            "session.audio.input.turn_detection.eagerness",
        ),
    ],
)
def test_a_refused_setting_names_itself(session: object, code: ErrorCode, param: str) -> None:
    fault = refused(session)
    assert (fault.code, fault.param) == (code, param)


@pytest.mark.parametrize(
    ("session", "param"),
    [
        ({"overlap_policy": "shout"}, "session.overlap_policy"),
        ({"playback_commit_policy": "never"}, "session.playback_commit_policy"),
        ({"extra_body": {"auto_response": "yes"}}, "session.extra_body.auto_response"),
        ({"extra_body": {"tools": [1]}}, "session.extra_body.tools"),
        ({"extra_body": [1]}, "session.extra_body"),
    ],
)
def test_a_refused_duplex_setting_names_itself(session: object, param: str) -> None:
    assert refused(session, "duplex").param == param


def test_model_names_that_mean_the_default() -> None:
    assert [NAMES.resolve(name) for name in (None, "", "m2", "gpt-realtime-2.1")] == ["m1", "m1", "m2", "m1"]
