"""The native model as stage code: one request is one conversation, a piece of it one frame or more, each answered at once.

Rule kept here: every whole frame of a piece gets exactly one output, in order; what does not fill a frame is refused.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from duologue.detect.weights import models_folder
from duologue.engine.stages.contract import PREWARM, Stage, StageControl
from duologue.models.native.network import RECALLED_FRAMES, Memory, Network
from duologue.models.native.shape import FRAME_BYTES, RATE_HZ
from duologue.models.native.weights import Floats, load
from duologue.outputs import Options, RequestOutput, StageRequest

_SCALE = np.float32(1 / 32768)


class NativeStage(Stage[Memory]):
    """``models_dir``: where the weights are kept, ``None``: the folder of the other models. ``seed`` chooses them."""

    def __init__(self, *, models_dir: str | None = None, seed: int = 0) -> None:
        self._folder = models_folder(models_dir)
        self._seed = seed
        self.open_states = 0

    def load(self) -> None:
        self._network = Network(load(self._folder, self._seed))

    def open(self, request: StageRequest) -> Memory:
        del request
        self.open_states += 1
        return self._network.remember_nothing()

    def close(self, state: Memory) -> None:
        del state
        self.open_states -= 1

    def process(self, state: Memory, request: StageRequest, control: StageControl) -> Iterator[RequestOutput]:
        prompt = request.prompt
        if prompt.options.get(PREWARM) is True:
            return
        if prompt.audio_rate_hz != RATE_HZ or len(prompt.audio) % FRAME_BYTES:
            raise ValueError(f"the native model takes frames of {FRAME_BYTES} bytes at {RATE_HZ} Hz")
        samples = np.frombuffer(prompt.audio, "<i2").astype(np.float32) * _SCALE
        frames = list(samples.reshape(-1, FRAME_BYTES // 2))
        if prompt.token_ids or prompt.options.get("recalled_frames"):
            known = int(prompt.options.get("recalled_frames") or 0)
            self._rebuild(state, prompt.token_ids, frames[:known], prompt.options)
            frames = frames[known:]
        listen = prompt.options.get("force_listen") is True
        for index, frame in enumerate(frames, 1):
            if control.cancelled:
                return
            made = self._network.step(state, frame, listen=listen)
            last = prompt.final and index == len(frames)
            silent = made.decision == "listen" and not made.audio.any()
            yield RequestOutput(
                request_id=request.request_id,
                segment_finished=True,
                finished=last,
                finish_reason="stop" if last else None,
                token_ids=made.tokens,
                text=made.word,
                audio=b"" if silent else np.rint(made.audio * np.float32(32767)).astype("<i2").tobytes(),
                audio_rate_hz=RATE_HZ,
                metadata={"decision": made.decision, "heard": state.gate.heard, "quiet": state.gate.quiet},
            )

    def _rebuild(self, state: Memory, tokens: tuple[int, ...], frames: list[Floats], options: Options) -> None:
        """The conversation was at another replica, which is gone."""
        audio = np.concatenate(frames) if frames else np.zeros(0, np.float32)
        self._network.recall(state, tokens, audio[-RECALLED_FRAMES * FRAME_BYTES // 2 :])
        state.earlier = int(options.get("frames") or 0) - state.frames
        state.gate.heard = float(options.get("heard") or 0.0)
        state.gate.quiet = float(options.get("quiet") or 0.0)
