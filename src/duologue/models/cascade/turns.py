"""How the cascade serves ordinary requests: transcription ends after recognition, speech enters at the voice, chat enters at
the language model, or at recognition if the user spoke.

Rules kept here: text to be spoken goes in sentence by sentence, so that a session never waits for the voice longer than one
sentence takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from duologue.engine.duplex.plugin import ChatTurn, SpeechTurn, TranscriptionTurn, Turn, TurnPlan
from duologue.errors import ClientFault, ErrorCode
from duologue.models.cascade.edges import RECOGNISE, RESPOND, SPEAK
from duologue.models.cascade.sentences import SentenceSplitter
from duologue.outputs import SamplingParams, StagePrompt

LANGUAGE: Final = "en"
LONGEST_UTTERANCE_MS: Final = 15_000
"""About a quarter of a second of recognition: that long a session may have to wait for the stage."""

_LONGEST_ANSWER_TOKENS = 1024  # half of the context; what is asked for beyond is cut to it


def plan(turn: Turn, defaults: Sequence[SamplingParams]) -> TurnPlan:
    """The way of a request through recognise, respond and speak. Raises :class:`ClientFault`."""
    match turn:
        case ChatTurn():
            return _chat(turn, defaults)
        case SpeechTurn():
            return _speech(turn, defaults)
        case TranscriptionTurn():
            return _transcription(turn)


def _chat(turn: ChatTurn, defaults: Sequence[SamplingParams]) -> TurnPlan:
    recognise, respond, speak = defaults
    changes: dict[str, object] = {"stop": turn.stop}
    if turn.temperature is not None:
        changes["temperature"] = turn.temperature
    if turn.top_p is not None:
        changes["top_p"] = turn.top_p
    if turn.seed is not None:
        changes["seed"] = turn.seed
    if turn.max_tokens is not None:
        changes["max_tokens"] = min(turn.max_tokens, _LONGEST_ANSWER_TOKENS)
    prompt = StagePrompt(
        messages=turn.messages,
        audio=turn.audio,
        audio_rate_hz=turn.rate_hz,
        options={"instructions": turn.instructions, "deltas": turn.modality == "text"},
    )
    return TurnPlan(
        pieces=(prompt,),
        entry_stage_id=RECOGNISE if turn.audio else RESPOND,
        final_stage_id=RESPOND if turn.modality == "text" else SPEAK,
        sampling_params=(recognise, msgspec.structs.replace(respond, **changes), speak),
        report_stage_id=RESPOND,
    )


def _speech(turn: SpeechTurn, defaults: Sequence[SamplingParams]) -> TurnPlan:
    recognise, respond, speak = defaults
    splitter = SentenceSplitter()
    texts = [piece.text for piece in (*splitter.push(turn.text), *splitter.finish())]
    return TurnPlan(
        pieces=tuple(StagePrompt(text=text, final=index == len(texts)) for index, text in enumerate(texts, 1)),
        entry_stage_id=SPEAK,
        final_stage_id=SPEAK,
        sampling_params=(recognise, respond, msgspec.structs.replace(speak, speed=turn.speed)),
    )


def _transcription(turn: TranscriptionTurn) -> TurnPlan:
    if turn.language is not None and turn.language.split("-")[0].lower() not in (LANGUAGE, "english"):
        raise ClientFault(
            ErrorCode.INVALID_RUNTIME_CONFIG,
            f"The embedded model understands English only, not {turn.language!r}; use 'en' or omit it.",
            param="language",
        )
    return TurnPlan(
        pieces=(StagePrompt(audio=turn.audio, audio_rate_hz=turn.rate_hz),),
        entry_stage_id=RECOGNISE,
        final_stage_id=RECOGNISE,
        language=LANGUAGE,
    )
