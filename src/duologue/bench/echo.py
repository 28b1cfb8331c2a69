"""Stages that do nothing but answer, so that what is measured is the engine."""

from __future__ import annotations

from collections.abc import Iterator

from duologue.engine.stages.contract import Stage, StageControl
from duologue.outputs import RequestOutput, StageRequest


class EchoStage(Stage[None]):
    """Answers each piece with one output that holds its text and audio; finished with the last piece."""

    concurrency = 64

    def open(self, request: StageRequest) -> None:
        del request

    def process(self, state: None, request: StageRequest, control: StageControl) -> Iterator[RequestOutput]:
        del state, control
        prompt = request.prompt
        yield RequestOutput(
            request_id=request.request_id,
            text=prompt.text,
            audio=prompt.audio,
            audio_rate_hz=prompt.audio_rate_hz,
            segment_finished=not prompt.final,
            finished=prompt.final,
        )


class EchoWorkerStage(EchoStage):
    """The same with one thread, for worker processes."""

    concurrency = 1
