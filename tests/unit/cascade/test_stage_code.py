"""The cascade's edges and its language-model stage, with a model that is told what to say."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from duologue.engine.stages.edge import NOTHING, EdgeInput
from duologue.models.cascade import stages
from duologue.models.cascade.chat import ChatMessage as Said
from duologue.models.cascade.chat import Completion, FinishReason, OnText, never
from duologue.models.cascade.edges import PREFILL, words_to_model
from duologue.models.cascade.stages import RespondStage, Slots
from duologue.outputs import ChatMessage, RequestOutput, SamplingParams, StagePrompt, StageRequest

HISTORY = (ChatMessage("user", "hello"), ChatMessage("assistant", "hi"))
ENTRY = StagePrompt(messages=HISTORY, session_key="s", options={"instructions": "", "deltas": False}, audio=b"\1\0")


def heard(text: str, *, final: bool, spoken: bool = True) -> EdgeInput:
    """An output of the recogniser at its edge."""
    output = RequestOutput(request_id="r", text=text, finished=final, metadata={"spoken": spoken})
    return EdgeInput(
        request_id="r",
        output=output,
        text=text,
        token_ids=(),
        audio=b"",
        audio_rate_hz=0,
        segment_index=0,
        entry_prompt=ENTRY,
        is_session=True,
        final=final,
    )


def test_the_final_words_are_asked_after_the_conversation() -> None:
    prompt = words_to_model(heard(" how are you? ", final=True))
    assert isinstance(prompt, StagePrompt)
    assert prompt.messages == (*HISTORY, ChatMessage("user", "how are you?"))
    assert prompt.audio == b"" and PREFILL not in prompt.options and prompt.session_key == "s"


def test_a_guess_goes_ahead_as_a_hint() -> None:
    prompt = words_to_model(heard("how are", final=False))
    assert isinstance(prompt, StagePrompt)
    assert prompt.messages[-1].text == "how are" and prompt.options[PREFILL] is True


def test_noise_is_not_asked_and_a_text_turn_is() -> None:
    assert words_to_model(heard("", final=True)) is NOTHING
    assert words_to_model(heard("", final=False)) is NOTHING
    prompt = words_to_model(heard("", final=True, spoken=False))
    assert isinstance(prompt, StagePrompt) and prompt.messages == HISTORY


@dataclass
class Told:
    """A model that says ``pieces`` and remembers what it was asked."""

    pieces: Sequence[str] = ("One. ", "Two is a longer sentence, ", "and it ends here.")
    slots: int = 2
    asked: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    read: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    read_done: threading.Event = field(default_factory=threading.Event)

    def generate(
        self,
        slot: int,
        messages: Sequence[Said],
        *,
        on_text: OnText,
        max_tokens: int = 0,
        temperature: float = 0.0,
        seed: int = 0,
        stop: Sequence[str] = (),
        cancelled: Callable[[], bool] = never,
    ) -> Completion:
        self.asked.append((slot, tuple(message.content for message in messages)))
        said: list[str] = []
        for piece in self.pieces:
            said.append(piece)
            if cancelled() or on_text(piece):
                return Completion(text="".join(said), finish_reason=FinishReason.CANCELLED)
        return Completion(text="".join(said), finish_reason=FinishReason.STOP)

    def prefill(self, slot: int, messages: Sequence[Said], *, cancelled: Callable[[], bool] = never) -> int:
        self.read.append((slot, tuple(message.content for message in messages)))
        if messages[-1].content == "how are":
            self.read_done.set()
        return 0

    def close(self) -> None:
        pass


class Control:
    cancelled = False


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> tuple[RespondStage, Told]:
    model = Told()
    made = RespondStage(slots=2)
    monkeypatch.setattr(stages, "_IDLE_S", 1000.0)  # nothing is warmed while a test looks
    monkeypatch.setattr(made, "_make_model", lambda: model)
    made.load()
    return made, model


def request(prompt: StagePrompt) -> StageRequest:
    return StageRequest(request_id="r", external_req_id="r", prompt=prompt, params=SamplingParams())


def run(stage: RespondStage, *prompts: StagePrompt) -> list[RequestOutput]:
    first = request(prompts[0])
    state = stage.open(first)
    outputs = [output for prompt in prompts for output in stage.process(state, request(prompt), Control())]
    stage.close(state)
    stage.shutdown()
    return outputs


def asked(text: str, **options: bool) -> StagePrompt:
    return StagePrompt(
        messages=(*HISTORY, ChatMessage("user", text)), session_key="s", options={"instructions": "", **options}
    )


def test_sentences_leave_as_they_are_complete(stage: tuple[RespondStage, Told]) -> None:
    outputs = run(stage[0], asked("how are you?"))
    assert "".join(output.text for output in outputs) == "".join(stage[1].pieces)
    assert outputs[0].text == "One. " and outputs[0].segment_finished and not outputs[0].finished
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]


def test_deltas_leave_as_they_are_said(stage: tuple[RespondStage, Told]) -> None:
    outputs = run(stage[0], asked("how are you?", deltas=True))
    assert [output.text for output in outputs[:-1]] == list(stage[1].pieces)


def test_a_hint_is_read_and_only_the_question_answered(stage: tuple[RespondStage, Told]) -> None:
    outputs = run(stage[0], asked("how are", prefill=True), asked("how are you?"))
    assert stage[1].read_done.wait(10)
    assert len(stage[1].asked) == 1 and stage[1].asked[0][1][-1] == "how are you?"
    assert stage[1].read[-1][0] == stage[1].asked[0][0], "the hint must go to the slot that answers"
    assert outputs[-1].finished


def test_an_input_that_came_to_nothing_ends_without_an_answer(stage: tuple[RespondStage, Told]) -> None:
    outputs = run(stage[0], asked("uh", prefill=True), StagePrompt())
    assert [(output.text, output.finished) for output in outputs] == [("", True)]
    assert not stage[1].asked


def test_a_cancelled_generation_stops(stage: tuple[RespondStage, Told]) -> None:
    control = Control()
    first = request(asked("how are you?"))
    state = stage[0].open(first)
    outputs = stage[0].process(state, first, control)
    assert next(outputs).text == "One. "
    control.cancelled = True
    outputs.close()  # type: ignore[attr-defined]
    stage[0].close(state)
    stage[0].shutdown()


def test_the_least_recent_conversation_gives_way() -> None:
    slots = Slots(2)
    assert (slots.take("a"), slots.take("b"), slots.take("a")) == (0, 1, 0)
    assert slots.take("c") == 1
    assert slots.take("a") == 0
    assert slots.used(0) and slots.used(1)
