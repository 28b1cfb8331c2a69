"""What a model said, in types: the plugin's ``decide`` turns a stage output into these, the core acts on them."""

from __future__ import annotations

from typing import Literal

import msgspec

from duologue.outputs import AudioMark, RequestOutput

CutReason = Literal["max_output_tokens", "content_filter"]


class UserTranscript(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What the user said in the audio of this request. ``final`` false: a partial guess that a later one replaces."""

    text: str
    final: bool


class Speech(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A piece of the assistant's answer: text, or audio with the text it speaks.

    ``audio`` is PCM16 mono at ``rate_hz``; ``marks`` are relative to this piece's text and audio.
    """

    text: str = ""
    audio: bytes = b""
    rate_hz: int = 0
    marks: tuple[AudioMark, ...] = ()


class Listened(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The model decided to listen for this unit. ``end_response``: it also ends the answer in progress."""

    reason: str = "model"
    end_response: bool = False


class TurnEnded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The model finished its turn. ``model_turn_id`` is given by models that number their turns."""

    model_turn_id: int | None = None


class CutShort(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The answer ends, or ended, before the model had said all of it: its terminal is ``incomplete`` and says why.

    Report it before ``TurnEnded``, or with the last output of whichever stage knows.
    """

    reason: CutReason


class FunctionCall(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The model asks for a function of the client's. ``arguments``: all of it, as the model wrote it (JSON text).

    The answer goes on: speech may follow in the same turn, and the result belongs to a later one.
    """

    name: str
    arguments: str = "{}"


class TokensUsed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What a stage counted for this answer. Report only what was counted; several reports add up."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0


class ContextUsed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How full a resident model's context is, in whatever it counts. Report it with each unit, or from half full on.

    A model that ``compacts`` is rolled over in time; the session of any other ends before the limit. ``heard``: how many
    pieces of this request are in it. A model with the capability ``context_units`` reports this with each piece: the
    session submits no more than fits, and rolls over when all that it submitted is in.
    """

    used: int
    limit: int
    heard: int = 0


class ModelFailed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The model reported an error of its own for this request."""

    message: str


ModelResult = (
    UserTranscript | Speech | Listened | TurnEnded | CutShort | FunctionCall | TokensUsed | ContextUsed | ModelFailed
)


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A plugin's verdict on one stage output. ``forward``: also hand it to the next stage."""

    results: tuple[ModelResult, ...] = ()
    forward: bool = False


def cut_short(output: RequestOutput) -> tuple[CutShort, ...]:
    """What a language model's last output says of an answer that it did not finish."""
    if not output.finished:
        return ()
    match output.finish_reason:
        case "length":
            return (CutShort(reason="max_output_tokens"),)
        case "content_filter":
            return (CutShort(reason="content_filter"),)
        case _:
            return ()
