"""The cascade's language model on vLLM: what stays resident, what gives way, and the stage that uses it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from duologue.engine.stages.vllm_engine import VllmSettings
from duologue.models.cascade.chat import ChatMessage, FinishReason, Role
from duologue.models.cascade.language_model import ContextOverflowError
from duologue.models.cascade.stages import RespondStage
from duologue.models.cascade.vllm_model import VllmLanguageModel
from duologue.outputs import ChatMessage as Said
from duologue.outputs import SamplingParams, StagePrompt, StageRequest
from tests.backends.tiny import write_tiny_model, write_tiny_tokenizer

CONTEXT = 2048
SYSTEM = ChatMessage(Role.SYSTEM, "Be brief.")
QUESTION = ChatMessage(Role.USER, "What is the capital of Italy?")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_tiny_model(tmp_path_factory.mktemp("tiny"), context_tokens=CONTEXT)
    write_tiny_tokenizer(made)
    return made


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[VllmLanguageModel]:
    made = VllmLanguageModel(
        VllmSettings(model=str(folder), slots=2, context_tokens=CONTEXT, kv_cache_bytes=2 << 20, weights="dummy")
    )
    yield made
    made.close()


def test_a_prompt_that_goes_on_computes_only_what_is_new(model: VllmLanguageModel) -> None:
    texts: list[str] = []
    first = model.generate(0, [SYSTEM, QUESTION], on_text=lambda t: bool(texts.append(t)), max_tokens=10, temperature=0)
    assert first.text == "".join(texts)
    assert first.finish_reason is FinishReason.LENGTH
    assert first.generated_tokens == 10
    # What the assistant said may differ from what was generated (it is cut to what was heard): the question is resident.
    longer = [SYSTEM, QUESTION, ChatMessage(Role.ASSISTANT, "Rome."), ChatMessage(Role.USER, "And of Spain?")]
    model.prefill(1, longer[:2])
    again = model.generate(1, longer, on_text=lambda _: False, max_tokens=4, temperature=0)
    assert again.prompt_tokens is not None
    assert again.cached_tokens is not None
    assert first.prompt_tokens is not None
    resident = first.prompt_tokens - len("<assistant\n")  # one token per byte, and the mark
    assert again.cached_tokens >= resident
    assert model.prefill(1, longer) == 0, "it is all there"


def test_a_cancel_stops_the_answer_and_the_next_prompt_begins_anew(model: VllmLanguageModel) -> None:
    cut = model.generate(0, [SYSTEM, QUESTION], on_text=lambda _: True, max_tokens=200)
    assert cut.finish_reason is FinishReason.CANCELLED
    assert cut.generated_tokens is not None
    assert cut.generated_tokens < 200
    never_begun = model.generate(0, [SYSTEM, QUESTION], on_text=lambda _: False, cancelled=lambda: True)
    assert never_begun.generated_tokens == 0
    assert model.generate(0, [SYSTEM, QUESTION], on_text=lambda _: False, max_tokens=3).generated_tokens == 3


def test_what_on_text_raises_comes_out_and_frees_the_slot(model: VllmLanguageModel) -> None:
    def broken(text: str) -> bool:
        raise KeyError("reader")

    with pytest.raises(KeyError, match="reader"):
        model.generate(0, [QUESTION], on_text=broken, max_tokens=200)
    assert model.generate(0, [QUESTION], on_text=lambda _: False, max_tokens=3).generated_tokens == 3


def test_a_prompt_beyond_the_context_says_by_how_much(model: VllmLanguageModel) -> None:
    with pytest.raises(ContextOverflowError) as over:
        model.generate(0, [ChatMessage(Role.USER, "x" * CONTEXT)], on_text=lambda _: False, max_tokens=48)
    assert over.value.context_tokens == CONTEXT - 48
    assert over.value.prompt_tokens > CONTEXT


def test_an_idle_conversation_gives_way_where_memory_is_short(model: VllmLanguageModel) -> None:
    """2 MB hold 4,096 tokens less a block: not two whole contexts."""
    for slot in (0, 1):
        long = [ChatMessage(Role.USER, f"{slot}" * 1900)]
        assert model.generate(slot, long, on_text=lambda _: False, max_tokens=100).generated_tokens == 100


@dataclass
class Running:
    cancelled: bool = False


def test_the_respond_stage_runs_on_vllm_by_its_option_alone(folder: Path) -> None:
    stage = RespondStage(language_model=f"vllm:{folder}?weights=dummy", slots=1, context_tokens=CONTEXT)
    stage.load()
    request = StageRequest(
        request_id="r",
        external_req_id="r",
        prompt=StagePrompt(messages=(Said("user", "Hello."),), session_key="s", options={"deltas": True}),
        params=SamplingParams(max_tokens=12, temperature=0.0),
    )
    state = stage.open(request)
    outputs = list(stage.process(state, request, Running()))
    stage.close(state)
    stage.shutdown()
    assert outputs[-1].finished
    assert outputs[-1].metadata["generated_tokens"] == 12
    assert "".join(output.text for output in outputs)
