"""How the scripted pipeline serves ordinary requests. It has every voice but one, and every language."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from duologue.engine.duplex.plugin import ChatTurn, SpeechTurn, TranscriptionTurn, Turn, TurnPlan
from duologue.errors import ClientFault, ErrorCode
from duologue.models.scripted.stages import ANSWER, RECOGNISE, SPEAK
from duologue.outputs import SamplingParams, StagePrompt

LONGEST_UTTERANCE_MS: Final = 10_000
REFUSED_VOICE: Final = "refused"
UNLIMITED: Final = 65_536
"""How many words a scripted model says at most if it is told nothing else."""

_SENTENCE = re.compile(r"[^.!?]+[.!?]*\s*|[.!?]+\s*")


def plan(turn: Turn, defaults: Sequence[SamplingParams]) -> TurnPlan:
    """The way of a request through recognise, answer and speak. Raises :class:`ClientFault` for the refused voice."""
    match turn:
        case ChatTurn():
            return _chat(turn, defaults)
        case SpeechTurn():
            _check_voice(turn.voice)
            texts = _SENTENCE.findall(turn.text)
            return TurnPlan(
                pieces=tuple(StagePrompt(text=text, final=index == len(texts)) for index, text in enumerate(texts, 1)),
                entry_stage_id=SPEAK,
                final_stage_id=SPEAK,
            )
        case TranscriptionTurn():
            return TurnPlan(
                pieces=(StagePrompt(audio=turn.audio, audio_rate_hz=turn.rate_hz),),
                entry_stage_id=RECOGNISE,
                final_stage_id=RECOGNISE,
            )


def _chat(turn: ChatTurn, defaults: Sequence[SamplingParams]) -> TurnPlan:
    _check_voice(turn.voice)
    recognise, answer, speak = defaults
    answer = msgspec.structs.replace(answer, max_tokens=turn.max_tokens or UNLIMITED)
    asked = next((message.text for message in reversed(turn.messages) if message.role == "user"), "")
    prompt = StagePrompt(text=asked, messages=turn.messages, audio=turn.audio, audio_rate_hz=turn.rate_hz)
    return TurnPlan(
        pieces=(prompt,),
        entry_stage_id=RECOGNISE if turn.audio else ANSWER,
        final_stage_id=ANSWER if turn.modality == "text" else SPEAK,
        report_stage_id=ANSWER,
        sampling_params=(recognise, answer, speak),
    )


def _check_voice(voice: str | None) -> None:
    if voice == REFUSED_VOICE:
        raise ClientFault(
            ErrorCode.INVALID_RUNTIME_CONFIG,
            f"The scripted model has no voice {REFUSED_VOICE!r}; choose any other.",
            param="voice",
        )
