"""The cascade's edges and its language-model stage, with a model that is told what to say."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from duologue.engine.stages.edge import NOTHING, EdgeInput
from duologue.models.cascade import stages
from duologue.models.cascade.chat import ChatMessage as Said
from duologue.models.cascade.chat import Completion, FinishReason, OnText, never
from duologue.models.cascade.edges import DRAFT, PREFILL, words_to_model
from duologue.models.cascade.recogniser import Memory
from duologue.models.cascade.stages import RecogniseStage, RespondStage, Slots
from duologue.outputs import ChatMessage, RequestOutput, SamplingParams, StagePrompt, StageRequest

HISTORY = (ChatMessage("user", "hello"), ChatMessage("assistant", "hi"))
ENTRY = StagePrompt(messages=HISTORY, session_key="s", options={"instructions": "", "deltas": False}, audio=b"\1\0")


def heard(text: str, *, final: bool, spoken: bool = True, pause: bool = False) -> EdgeInput:
    """An output of the recogniser at its edge."""
    metadata = {"spoken": spoken, "pause": pause}
    output = RequestOutput(request_id="r", text=text, finished=final, metadata=metadata)
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
    assert prompt.options[DRAFT] is False


def test_a_guess_at_a_pause_may_be_all_that_is_asked() -> None:
    prompt = words_to_model(heard("how are you?", final=False, pause=True))
    assert isinstance(prompt, StagePrompt)
    assert prompt.options[PREFILL] is True and prompt.options[DRAFT] is True
    final = words_to_model(heard("how are you?", final=True))
    assert isinstance(final, StagePrompt) and not {PREFILL, DRAFT} & set(final.options)


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
    reason: FinishReason = FinishReason.STOP
    begun: threading.Event = field(default_factory=threading.Event)
    hold: threading.Event | None = None  # the answer to "how are you?" waits for it after its first piece
    ends: queue.SimpleQueue[tuple[str, FinishReason]] = field(default_factory=queue.SimpleQueue)

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
        reason = self.reason
        for piece in self.pieces:
            said.append(piece)
            if cancelled() or on_text(piece):
                reason = FinishReason.CANCELLED
                break
            self.begun.set()
            if self.hold is not None and messages[-1].content == "how are you?":
                assert self.hold.wait(10)
        self.ends.put((messages[-1].content, reason))
        return Completion(text="".join(said), finish_reason=reason)

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


def test_an_answer_that_was_begun_at_a_pause_is_the_answer_to_what_is_asked(stage: tuple[RespondStage, Told]) -> None:
    model = stage[1]
    first = request(asked("how are you?", prefill=True, draft=True))
    state = stage[0].open(first)
    assert not list(stage[0].process(state, first, Control())), "nobody has asked yet"
    assert model.begun.wait(10)
    outputs = list(stage[0].process(state, request(asked("how are you?")), Control()))
    assert "".join(output.text for output in outputs) == "".join(model.pieces) and outputs[-1].finished
    assert len(model.asked) == 1 and model.ends.get(timeout=10) == ("how are you?", FinishReason.STOP)
    stage[0].close(state)
    stage[0].shutdown()


@pytest.mark.parametrize("follows", ["how are you", "", "more"])
def test_an_answer_that_nobody_asks_for_is_stopped(stage: tuple[RespondStage, Told], follows: str) -> None:
    """Other words are asked, nothing is asked, or the user goes on."""
    model = stage[1]
    model.hold = threading.Event()
    first = request(asked("how are you?", prefill=True, draft=True))
    state = stage[0].open(first)
    assert not list(stage[0].process(state, first, Control()))
    assert model.begun.wait(10)
    prompt = (
        StagePrompt() if not follows else asked("how are you to", prefill=True) if follows == "more" else asked(follows)
    )
    said = "".join(output.text for output in stage[0].process(state, request(prompt), Control()))
    assert said == ("".join(model.pieces) if follows == "how are you" else "")
    model.hold.set()
    ends = dict(model.ends.get(timeout=10) for _ in model.asked)
    assert ends["how are you?"] is FinishReason.CANCELLED
    stage[0].close(state)
    stage[0].shutdown()


def test_a_cancel_reaches_an_answer_that_was_begun_before_it_was_asked_for(stage: tuple[RespondStage, Told]) -> None:
    model = stage[1]
    model.hold = threading.Event()
    first = request(asked("how are you?", prefill=True, draft=True))
    state = stage[0].open(first)
    assert not list(stage[0].process(state, first, Control()))
    assert model.begun.wait(10)
    assert state.draft is not None
    control = Control()
    generation = stage[0]._generation(state, state.draft.asked, control)
    control.cancelled = True
    model.hold.set()
    assert [item for item in generation if isinstance(item, str)] == list(model.pieces[:1])
    assert model.ends.get(timeout=10) == ("how are you?", FinishReason.CANCELLED)
    stage[0].close(state)
    stage[0].shutdown()


class Ears:
    """A recogniser that counts."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.memories: list[Memory | None] = []

    def transcribe(self, pcm16: bytes, *, cancelled: Callable[[], bool] = never, memory: Memory | None = None) -> str:
        self.calls.append(len(pcm16))
        self.memories.append(memory)
        return f"{len(pcm16)} bytes"


def hear(partials: bool, *pieces: StagePrompt) -> tuple[list[RequestOutput], Ears]:
    stage, ears = RecogniseStage(partials=partials), Ears()
    stage._recogniser = ears  # type: ignore[assignment]
    state = stage.open(request(pieces[0]))
    return [output for piece in pieces for output in stage.process(state, request(piece), Control())], ears


def spoken(size: int, *, final: bool = False, **options: bool) -> StagePrompt:
    return StagePrompt(audio=bytes(size), final=final, options=options)


def test_what_was_heard_up_to_a_pause_is_not_heard_again() -> None:
    outputs, ears = hear(True, spoken(100), spoken(50, pause=True), spoken(30, final=True, quiet=True))
    assert [output.text for output in outputs] == ["100 bytes", "150 bytes", "150 bytes"]
    assert [output.metadata.get("pause") for output in outputs[:2]] == [False, True]
    assert ears.calls == [100, 150] and outputs[-1].finished
    assert ears.memories[0] is ears.memories[1] is not None


@pytest.mark.parametrize(
    ("partials", "last"),
    [(True, {"quiet": False}), (False, {"quiet": True}), (True, {})],
    ids=["speech", "nothing known", "nothing said of it"],
)
def test_what_may_hold_words_is_heard(partials: bool, last: dict[str, bool]) -> None:
    outputs, ears = hear(partials, spoken(100, pause=True), spoken(30, final=True, **last))
    assert outputs[-1].text == "130 bytes" and ears.calls[-1] == 130


def test_a_pause_right_after_a_guess_repeats_the_guess_as_one_that_may_be_all() -> None:
    outputs, ears = hear(True, spoken(100), spoken(10, pause=True, quiet=True))
    assert [(output.text, output.metadata["pause"]) for output in outputs] == [
        ("100 bytes", False),
        ("100 bytes", True),
    ]
    assert ears.calls == [100]


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


@pytest.mark.parametrize(("reason", "told"), [(FinishReason.LENGTH, "length"), (FinishReason.STOP, "stop")])
@pytest.mark.parametrize("deltas", [False, True])
def test_the_last_output_says_why_the_answer_ended(
    reason: FinishReason, told: str, deltas: bool, stage: tuple[RespondStage, Told]
) -> None:
    made, model = stage
    model.reason = reason
    outputs = run(made, StagePrompt(messages=(ChatMessage("user", "hello"),), options={"deltas": deltas}))
    assert [output.finish_reason for output in outputs] == [None] * (len(outputs) - 1) + [told]
    assert outputs[-1].finished
