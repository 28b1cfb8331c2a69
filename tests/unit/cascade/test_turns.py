"""How the cascade plans ordinary requests, and that they leave the conversations of sessions where they are."""

from __future__ import annotations

import pytest

from duologue.engine.duplex.plugin import ChatTurn, SpeechTurn, TranscriptionTurn, TurnRequests
from duologue.errors import ClientFault
from duologue.models.cascade.edges import RECOGNISE, RESPOND, SPEAK
from duologue.models.cascade.plugin import CascadePlugin
from duologue.models.cascade.stages import RespondStage, Slots
from duologue.outputs import ChatMessage, SamplingParams, StagePrompt, StageRequest

DEFAULTS = (SamplingParams(), SamplingParams(max_tokens=160, temperature=0.3), SamplingParams())
ASKED = (ChatMessage("user", "Hello?"),)


def test_the_plugin_offers_ordinary_requests() -> None:
    assert isinstance(CascadePlugin(), TurnRequests)


@pytest.mark.parametrize(
    ("turn", "entry", "final"),
    [
        (ChatTurn(messages=ASKED), RESPOND, RESPOND),
        (ChatTurn(messages=ASKED, modality="audio"), RESPOND, SPEAK),
        (ChatTurn(messages=(), audio=b"\0\0", rate_hz=16_000), RECOGNISE, RESPOND),
        (ChatTurn(messages=(), audio=b"\0\0", rate_hz=16_000, modality="audio"), RECOGNISE, SPEAK),
        (SpeechTurn(text="Hello."), SPEAK, SPEAK),
        (TranscriptionTurn(audio=b"\0\0", rate_hz=16_000), RECOGNISE, RECOGNISE),
    ],
)
def test_where_a_request_enters_and_ends(
    turn: ChatTurn | SpeechTurn | TranscriptionTurn, entry: int, final: int
) -> None:
    plan = CascadePlugin().plan_turn(turn, DEFAULTS)
    assert (plan.entry_stage_id, plan.final_stage_id) == (entry, final)
    assert [piece.final for piece in plan.pieces] == [False] * (len(plan.pieces) - 1) + [True]
    assert all(piece.session_key == "" for piece in plan.pieces), "of no session"


def test_settings_of_a_chat_reach_the_language_model_and_the_rest_keeps_its_defaults() -> None:
    turn = ChatTurn(messages=ASKED, temperature=0.0, top_p=0.5, max_tokens=99_999, seed=7, stop=("x",))
    recognise, respond, speak = CascadePlugin().plan_turn(turn, DEFAULTS).sampling_params
    assert (recognise, speak) == (DEFAULTS[0], DEFAULTS[2])
    assert (respond.temperature, respond.top_p, respond.seed, respond.stop) == (0.0, 0.5, 7, ("x",))
    assert respond.max_tokens == 1024, "no more than half of the context"
    plain = CascadePlugin().plan_turn(ChatTurn(messages=ASKED), DEFAULTS).sampling_params[1]
    assert (plain.temperature, plain.max_tokens) == (0.3, 160)


def test_speech_goes_in_sentence_by_sentence() -> None:
    text = "One is short. Two is short too. Three " + "is long, " * 60
    plan = CascadePlugin().plan_turn(SpeechTurn(text=text, speed=1.5), DEFAULTS)
    assert "".join(piece.text for piece in plan.pieces) == text
    assert max(len(piece.text) for piece in plan.pieces) <= 200
    assert plan.sampling_params[2].speed == 1.5


@pytest.mark.parametrize("language", [None, "en", "en-GB", "English"])
def test_english_is_recognised(language: str | None) -> None:
    turn = TranscriptionTurn(audio=b"\0\0", rate_hz=16_000, language=language)
    assert CascadePlugin().plan_turn(turn, DEFAULTS).language == "en"


def test_another_language_is_refused() -> None:
    with pytest.raises(ClientFault, match="English only"):
        CascadePlugin().plan_turn(TranscriptionTurn(audio=b"\0\0", rate_hz=16_000, language="de"), DEFAULTS)


def request(request_id: str, session_key: str = "") -> StageRequest:
    prompt = StagePrompt(messages=ASKED, session_key=session_key)
    return StageRequest(request_id=request_id, external_req_id=request_id, prompt=prompt, params=DEFAULTS[1])


def test_requests_of_no_session_do_not_push_a_session_out_of_its_slot() -> None:
    stage = RespondStage(slots=2)
    stage._slots = Slots(2)
    session = stage.open(request("r0", session_key="session"))
    own = stage._slots.take(session.key)
    stage.close(session)
    for number in range(5):
        state = stage.open(request(f"turn-{number}"))
        assert stage._slots.take(state.key) != own
        stage.close(state)
    assert stage._slots.used(own)
