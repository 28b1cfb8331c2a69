"""A toy model in two stages: one finds words for what it heard, one speaks them as tones. Put your own models here."""

from collections.abc import Iterator

import numpy as np

from duologue.engine.stages.contract import Stage, StageControl
from duologue.engine.stages.edge import NOTHING, EdgeInput, EdgeResult
from duologue.outputs import RequestOutput, StagePrompt, StageRequest

RATE_HZ = 24_000


class Answer(Stage[bytearray]):
    """Audio or text in, sentences out. The state of a request is the audio that it has brought so far."""

    def load(self) -> None:
        self.greeting = "I am a toy."  # load weights here: this runs once, in the worker process

    def open(self, request: StageRequest) -> bytearray:
        return bytearray()

    def process(self, state: bytearray, request: StageRequest, control: StageControl) -> Iterator[RequestOutput]:
        prompt = request.prompt
        state += prompt.audio
        if not prompt.final:
            return  # more of this turn follows
        seconds = len(state) / 2 / (prompt.audio_rate_hz or 1)
        words = f"You wrote {prompt.text}." if prompt.text else f"I heard {seconds:.1f} seconds."
        for sentence in (words, f" {self.greeting}"):
            if control.cancelled:
                return  # the user has interrupted: nothing more is delivered
            yield RequestOutput(request_id=request.request_id, text=sentence, segment_finished=True)
        yield RequestOutput(request_id=request.request_id, finished=True, finish_reason="stop")


class Speak(Stage[None]):
    """A sentence in, a tone per word out, at once: audio may start before the last sentence is known."""

    def __init__(self, *, pitch_hz: float = 220.0) -> None:
        self.pitch_hz = pitch_hz  # from `options` in config.yaml

    def open(self, request: StageRequest) -> None:
        return None

    def process(self, state: None, request: StageRequest, control: StageControl) -> Iterator[RequestOutput]:
        for word in request.prompt.text.split():
            phase = np.arange(RATE_HZ // 10) * (2 * np.pi * self.pitch_hz * (1 + len(word) / 12) / RATE_HZ)
            tone = (8_000 * np.sin(phase) * np.hanning(phase.size)).astype("<i2")
            audio = tone.tobytes()
            yield RequestOutput(request_id=request.request_id, text=f"{word} ", audio=audio, audio_rate_hz=RATE_HZ)


def sentence_to_voice(source: EdgeInput) -> EdgeResult:
    """What goes from one stage to the next: each sentence as soon as it is complete."""
    return StagePrompt(text=source.text) if source.text else NOTHING
