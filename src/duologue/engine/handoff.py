"""What a finished segment means for the stage after it: the forward rule as one pure function.

| edge returned | source not finished | source finished, pieces handed on before | source finished, none before |
|---|---|---|---|
| a prompt | submit, more follows | submit as the last piece | submit whole |
| ``NOTHING`` | drop this segment | end the input | the request ends empty |
| ``None`` | keep it for the next boundary | end the input | an ``empty_handoff`` error |
"""

from __future__ import annotations

import enum

import msgspec

from duologue.engine.requests import OrchestratorRequestState
from duologue.engine.stages.edge import NOTHING, Edge, EdgeInput
from duologue.errors import ErrorCode, StageFault
from duologue.outputs import CompanionOutput, RequestOutput, StagePrompt


class NoPiece(enum.Enum):
    """Why nothing is submitted."""

    WAIT = "wait"
    DROP = "drop"
    END_EMPTY = "end_empty"


_NO_PROMPT = StagePrompt()
_LAST_PIECE = StagePrompt(final=True)


class EmptyHandoff(StageFault):
    """A stage finished and its edge made nothing of its output."""


def hand_on(
    edge: Edge,
    state: OrchestratorRequestState,
    output: RequestOutput,
    companions: tuple[CompanionOutput, ...] = (),
) -> StagePrompt | NoPiece:
    """The piece for ``edge.target`` after ``output`` ended a segment at ``edge.source``.

    Raises :class:`EmptyHandoff`, and whatever the edge raises.
    """
    segment = state.streaming.segment(edge.source)
    texts = segment.text
    audio = segment.audio
    result = edge.processor(
        EdgeInput(
            request_id=state.request_id,
            output=output,
            text=texts[0] if len(texts) == 1 else "".join(texts),
            token_ids=tuple(segment.token_ids),
            audio=audio[0] if len(audio) == 1 else b"".join(audio),
            audio_rate_hz=segment.audio_rate_hz,
            segment_index=segment.index,
            entry_prompt=state.prompt or _NO_PROMPT,
            is_session=state.session_owned,
            final=output.finished,
            companions=companions,
        )
    )
    if isinstance(result, StagePrompt):
        return result if result.final == output.finished else msgspec.structs.replace(result, final=output.finished)
    if not output.finished:
        if result is None:
            segment.kept = True
            return NoPiece.WAIT
        return NoPiece.DROP
    if edge.target in state.fed:
        return _LAST_PIECE
    if result is NOTHING:
        # A target that was opened ahead of its input has to be told that none will come.
        return _LAST_PIECE if edge.target in state.submitted else NoPiece.END_EMPTY
    raise EmptyHandoff(
        ErrorCode.EMPTY_HANDOFF,
        f"Stage {edge.source} finished request {state.request_id!r} and its edge to stage {edge.target} made nothing "
        "of the output. Return NOTHING from the edge if that is right.",
    )
