"""A conversation that outgrows the language model's context is shortened between turns: shown by order, never by time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from duologue.models.cascade import slots
from duologue.models.cascade.chat import ChatMessage as Said
from duologue.models.cascade.chat import Completion, FinishReason, OnText, never
from duologue.models.cascade.stages import RespondStage
from duologue.outputs import ChatMessage, SamplingParams, StagePrompt, StageRequest

CONTEXT = 800
PARAMS = SamplingParams(max_tokens=160)
Heard = tuple[Said, ...]


@dataclass
class Model:
    """Notes in which order it is asked to read and to answer. ``slow``: reading ends only when it is given up."""

    slots: int = 2
    slow: bool = False
    log: list[tuple[str, int, Heard]] = field(default_factory=list)
    begun: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    read: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    given_up: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    busy: dict[int, threading.Lock] = field(default_factory=lambda: {0: threading.Lock(), 1: threading.Lock()})

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
        with self.busy[slot]:
            self.log.append(("answer", slot, tuple(messages)))
            text = "Word " * 19 + "end."
            on_text(text)
            if messages[-1].content == "Who are you?":
                assert self.given_up.acquire(timeout=10), "what is read meanwhile must give way"
                self.slow = False
            return Completion(text=text, finish_reason=FinishReason.STOP)

    def prefill(self, slot: int, messages: Sequence[Said], *, cancelled: Callable[[], bool] = never) -> int:
        with self.busy[slot]:
            self.log.append(("read", slot, tuple(messages)))
            self.begun.release()
            if self.slow:
                while not cancelled():
                    threading.Event().wait(0.001)
                self.log.append(("given up", slot, tuple(messages)))
                self.given_up.release()
                return 0
            self.read.release()
            return 1

    def close(self) -> None:
        pass


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def stage(model: Model, monkeypatch: pytest.MonkeyPatch) -> Iterator[RespondStage]:
    made = RespondStage(slots=1, context_tokens=CONTEXT)
    monkeypatch.setattr(slots, "_BETWEEN_S", 0.0)
    monkeypatch.setattr(made, "_make_model", lambda: model)
    made.load()
    model.log.clear()
    assert model.read.acquire(timeout=10) and model.begun.acquire(timeout=10)
    yield made
    made.shutdown()


class Control:
    cancelled = False


class Talk:
    """One session that asks on and on."""

    def __init__(self, stage: RespondStage, key: str = "s") -> None:
        self.stage = stage
        self.key = key
        self.history: list[ChatMessage] = []

    def ask(self, question: str) -> None:
        self.history.append(ChatMessage("user", question))
        prompt = StagePrompt(messages=tuple(self.history), session_key=self.key, options={"instructions": ""})
        request = StageRequest(request_id=question, external_req_id=question, prompt=prompt, params=PARAMS)
        state = self.stage.open(request)
        said = "".join(output.text for output in self.stage.process(state, request, Control()))
        self.stage.close(state)
        self.history.append(ChatMessage("assistant", said))


def test_the_shortened_context_is_read_before_the_next_question(stage: RespondStage, model: Model) -> None:
    """Every prompt either continues what the slot holds, or what it holds was read between the turns."""
    talk = Talk(stage)
    rolled, last = 0, ()
    for turn in range(30):
        before = len(model.log)
        talk.ask(f"What about number {turn}?")
        assert model.log[before][0] == "answer", "nothing of a roll-over is left for the turn"
        _, _, messages = model.log[before]
        if turn and messages[: len(last)] != last:
            kind, _, ready = model.log[before - 1]
            assert kind == "read" and messages[: len(ready)] == ready and len(messages) == len(ready) + 1
            rolled += 1
        last = messages
        if _will_roll(stage, talk):
            assert model.read.acquire(timeout=10)
    assert rolled >= 3
    assert len([entry for entry in model.log if entry[0] == "read"]) in (rolled, rolled + 1)


def _will_roll(stage: RespondStage, talk: Talk) -> bool:
    return bool(stage._ahead._planned)


def test_a_question_that_comes_at_once_does_not_wait_for_it(stage: RespondStage, model: Model) -> None:
    model.slow = True
    talk = Talk(stage)
    turn = 0
    while not stage._ahead._planned:
        talk.ask(f"What about number {turn}?")
        turn += 1
    assert model.begun.acquire(timeout=10)
    talk.ask("And now?")
    assert model.given_up.acquire(timeout=10)
    assert [kind for kind, _, _ in model.log[-3:]] == ["read", "given up", "answer"]


def test_it_gives_way_to_another_session_and_is_taken_up_again(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "_BETWEEN_S", 0.0)
    stage = RespondStage(slots=2, context_tokens=CONTEXT)
    monkeypatch.setattr(stage, "_make_model", lambda: model)
    monkeypatch.setattr("duologue.models.cascade.stages._IDLE_S", 1000.0)
    stage.load()
    assert model.read.acquire(timeout=10) and model.begun.acquire(timeout=10)
    model.slow = True
    talk, other = Talk(stage, "s"), Talk(stage, "t")
    while not stage._ahead._planned:
        talk.ask(f"What about number {len(talk.history)}?")
    assert model.begun.acquire(timeout=10)
    other.ask("Who are you?")
    assert model.read.acquire(timeout=10)
    reads = [(slot, messages) for kind, slot, messages in model.log if kind == "read"]
    assert reads[-1] == reads[-2] and reads[-1][0] == 0
    stage.shutdown()
