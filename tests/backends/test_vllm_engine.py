"""The engine around vLLM's core: appends, the context's limit, slots and memory, aborts. Real vLLM, random weights."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from duologue.engine.stages.vllm_engine import OpenSequence, Sampling, VllmEngine, VllmSettings
from duologue.errors import AdmissionFault, ClientFault, ErrorCode, StageFault
from tests.backends.tiny import CONTEXT_TOKENS, write_tiny_model

SLOTS = 4
BLOCK = 32
BLOCKS = 12  # less than four whole contexts, so that memory can run out before slots do
BLOCK_BYTES = 2 * 2 * 64 * 2 * BLOCK  # keys and values, layers, width, bytes
PATIENCE_S = 60.0
GREEDY = Sampling(max_tokens=4)
PROMPT = list(range(3, 13))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmEngine]:
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    made = VllmEngine(
        VllmSettings(
            model=str(folder),
            slots=SLOTS,
            context_tokens=CONTEXT_TOKENS,
            kv_cache_bytes=(BLOCKS + 1) * BLOCK_BYTES,
            block_tokens=BLOCK,
            step_tokens=64,
            weights="dummy",
        )
    )
    yield made
    made.shutdown()


@pytest.fixture
def opened(engine: VllmEngine) -> Iterator[list[OpenSequence]]:
    """Sequences to be closed at the end of the test; nothing may be left then."""
    found: list[OpenSequence] = []
    yield found
    for sequence in found:
        engine.close(sequence)
    assert engine.open_sequences == 0
    assert engine.kv_usage() == 0.0


def say(engine: VllmEngine, sequence: OpenSequence, tokens: list[int], sampling: Sampling = GREEDY) -> list[int]:
    """The whole answer to one piece."""
    steps = list(engine.decode(sequence, tokens, sampling))
    assert [step.reason for step in steps[:-1]] == [None] * (len(steps) - 1)
    assert steps[-1].reason is not None
    return [token for step in steps for token in step.token_ids]


def new(engine: VllmEngine, opened: list[OpenSequence]) -> OpenSequence:
    opened.append(engine.open())
    return opened[-1]


def test_a_piece_that_is_appended_is_answered_as_if_all_had_come_at_once(
    engine: VllmEngine, opened: list[OpenSequence]
) -> None:
    growing, whole = new(engine, opened), new(engine, opened)
    first = say(engine, growing, PROMPT)
    second = say(engine, growing, [50, 51])
    assert len(first) == len(second) == 4
    # The last token of the first answer must be in front of the second piece, though vLLM dropped it.
    assert say(engine, whole, [*PROMPT, *first, 50, 51]) == second
    assert growing.context == [*PROMPT, *first, 50, 51, *second[:-1]]
    assert growing.carried == (second[-1],)


def test_a_piece_that_is_only_read_leaves_no_token_of_its_own(engine: VllmEngine, opened: list[OpenSequence]) -> None:
    growing, whole = new(engine, opened), new(engine, opened)
    list(engine.decode(growing, PROMPT, Sampling(max_tokens=1), keep_last=False))
    assert growing.context == PROMPT
    assert growing.carried == ()
    assert say(engine, growing, [50]) == say(engine, whole, [*PROMPT, 50])


def test_a_stop_token_ends_the_answer_and_stays_in_the_context(engine: VllmEngine, opened: list[OpenSequence]) -> None:
    reference, stopped, again = new(engine, opened), new(engine, opened), new(engine, opened)
    answer = say(engine, reference, PROMPT, Sampling(max_tokens=6))
    stop = answer[2]
    cut = answer.index(stop) + 1
    steps = list(engine.decode(stopped, PROMPT, Sampling(max_tokens=6, stop_token_ids=(stop,))))
    assert [token for step in steps for token in step.token_ids] == answer[:cut]
    assert steps[-1].reason == "stop"
    assert say(engine, stopped, [60]) == say(engine, again, [*PROMPT, *answer[:cut], 60])


def test_the_context_can_be_filled_to_its_last_token_and_not_beyond(
    engine: VllmEngine, opened: list[OpenSequence]
) -> None:
    full = new(engine, opened)
    say(engine, full, [5] * 100, Sampling(max_tokens=20))
    with pytest.raises(
        ClientFault, match="The conversation has 119 tokens; 2 more and 8 for the answer are over"
    ) as no:
        say(engine, full, [7], Sampling(max_tokens=8))
    assert no.value.code is ErrorCode.REQUEST_INVALID
    assert len(say(engine, full, [7], Sampling(max_tokens=7))) == 7, "the refusal changed nothing"
    with pytest.raises(ClientFault):
        say(engine, full, [7], Sampling(max_tokens=1))
    other = new(engine, opened)
    assert len(say(engine, other, PROMPT)) == 4, "the engine lives"


def test_no_slot_is_an_error_and_not_a_silent_wait(engine: VllmEngine, opened: list[OpenSequence]) -> None:
    for _ in range(SLOTS):
        say(engine, new(engine, opened), PROMPT)
    late = new(engine, opened)
    with pytest.raises(AdmissionFault, match="All 4 slots") as no:
        say(engine, late, PROMPT)
    assert no.value.code is ErrorCode.RESOURCE_EXHAUSTED
    engine.close(opened[0])
    assert len(say(engine, late, PROMPT)) == 4


def test_no_memory_is_an_error_before_the_engine_is_asked(engine: VllmEngine, opened: list[OpenSequence]) -> None:
    assert engine.capacity_tokens == BLOCKS * BLOCK
    for _ in range(3):
        say(engine, new(engine, opened), [5] * 100, Sampling(max_tokens=20))
    fourth = new(engine, opened)
    with pytest.raises(AdmissionFault, match=r"holds 384 tokens, 384 are taken and this conversation needs 32"):
        say(engine, fourth, PROMPT)
    engine.close(opened[1])
    assert len(say(engine, fourth, PROMPT)) == 4
    assert say(engine, opened[0], [9], Sampling(max_tokens=2)), "those that have their memory go on"


def test_closing_the_answer_aborts_at_once_and_frees_the_memory(engine: VllmEngine, opened: list[OpenSequence]) -> None:
    sequence = new(engine, opened)
    with closing(engine.decode(sequence, PROMPT, Sampling(max_tokens=100))) as steps:
        next(steps)
        assert engine.kv_usage() > 0
    assert engine.open_sequences == 0
    assert engine.kv_usage() == 0.0
    with pytest.raises(StageFault, match="closed"):
        say(engine, sequence, [5])


def test_sequences_of_many_threads_are_batched_and_keep_apart(engine: VllmEngine, opened: list[OpenSequence]) -> None:
    together: dict[int, list[int]] = {}
    sequences = [new(engine, opened) for _ in range(SLOTS)]

    def run(number: int) -> None:
        together[number] = say(engine, sequences[number], [*PROMPT, 100 + number], Sampling(max_tokens=12))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(SLOTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    for number, sequence in enumerate(sequences):
        assert len(together[number]) == 12
        assert sequence.context == [*PROMPT, 100 + number, *together[number][:-1]], "each got its own tokens, in order"


def test_nothing_and_less_than_one_token_are_refused(engine: VllmEngine, opened: list[OpenSequence]) -> None:
    sequence = new(engine, opened)
    with pytest.raises(ClientFault, match="no tokens"):
        say(engine, sequence, [])
    with pytest.raises(ClientFault, match="max_tokens must be at least 1"):
        say(engine, sequence, PROMPT, Sampling(max_tokens=0))


def test_parameters_that_vllm_refuses_fail_their_request_alone(engine: VllmEngine, opened: list[OpenSequence]) -> None:
    with pytest.raises(StageFault, match="vLLM refused the request"):
        say(engine, new(engine, opened), PROMPT, Sampling(max_tokens=2, temperature=-1.0))
    assert len(say(engine, new(engine, opened), PROMPT)) == 4


def test_a_seeded_prompt_of_several_steps_does_not_end_the_engine(
    engine: VllmEngine, opened: list[OpenSequence]
) -> None:
    prompt = [5] * 100  # the engine of this file computes 64 tokens in a step
    assert len(say(engine, new(engine, opened), prompt, Sampling(max_tokens=4, temperature=0.5, seed=7))) == 4


def test_a_folder_without_a_model_is_said_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(StageFault, match="is not a folder with a model"):
        VllmEngine(VllmSettings(model=str(tmp_path)))
