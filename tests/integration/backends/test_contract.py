"""What every backend promises, whatever runs behind it."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from duologue.errors import StageFault
from tests.integration.backends.replica import PATIENCE_S, Replica, play, replica

BACKENDS = [
    ("inproc", "Blocking"),
    ("inproc", "Asynchronous"),
    ("process", "Blocking"),
    ("process", "Parallel"),
    ("process", "Asynchronous"),
    ("http", "PuppetChat"),
]
"""Backend and stage code. A module that imports these tests names its own: `make test-backends` has Ray and vLLM."""

LEFT_OUT = {
    "http": {
        "test_stage_code_whose_own_wait_was_cancelled_fails_its_request": "an endpoint runs no stage code of ours",
        "test_audio_of_any_size_arrives_as_it_was": "a chat carries no audio",
        "test_options_and_sampling_reach_the_stage": "an endpoint has no options of ours",
        "test_a_stage_that_cannot_load_says_why": "an endpoint is loaded by somebody else",
    },
    "vllm": {"test_audio_of_any_size_arrives_as_it_was": "a language model takes and makes tokens, no audio"},
}
"""All that a backend need not do, and why."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test on every backend of its module, but for what is left out."""
    if {"backend", "stage"} <= set(metafunc.fixturenames):
        name = metafunc.function.__name__
        backends: list[tuple[str, str]] = metafunc.module.BACKENDS
        metafunc.parametrize(
            ("backend", "stage"), [chosen for chosen in backends if name not in LEFT_OUT.get(chosen[0], {})]
        )


async def settled(one: Replica, *, opened: int) -> None:
    """Ask the stage until all its states are closed; ``opened`` is how many there must have been."""
    async with asyncio.timeout(PATIENCE_S):
        for number in itertools.count():
            name = f"ledger-{number}"
            so_far, closed = (int(text) for text in (await one.ask(name, "ledger"))[-1].text.split())
            # The questions themselves are requests: this one is open, the earlier ones are closed.
            assert closed <= so_far - 1, "a state was closed twice"
            assert so_far - 1 - number <= opened
            if closed == so_far - 1 == opened + number:
                return


def test_outputs_come_in_order_and_a_request_always_ends(backend: str, stage: str) -> None:
    async def scenario() -> None:
        async with replica(backend, stage) as one:
            outputs = await one.ask("r", "count 50")
            assert [output.text for output in outputs] == [*(f"1.{n}" for n in range(50)), ""]
            assert [output.finished for output in outputs] == [False] * 50 + [True]
            assert (await one.ask("m", "mute"))[-1].finish_reason == "stop"
            await settled(one, opened=2)

    play(scenario)


def test_pieces_of_a_request_are_worked_on_one_after_the_other(backend: str, stage: str) -> None:
    async def scenario() -> None:
        async with replica(backend, stage) as one:
            await one.submit("r", "count 20", final=False)
            for _ in range(3):
                await one.update("r", "count 20")
            await one.update("r", "count 20", final=True)
            await one.sink.until(lambda: one.sink.ended("r"))
            assert [output.text for output in one.sink.of("r") if output.text] == [
                f"{number}.{n}" for number in range(1, 6) for n in range(20)
            ]
            await one.update("r", "count 3")  # it is over: ignored
            await settled(one, opened=1)
            assert one.sink.of("r")[-1].finished

    play(scenario)


def test_nothing_is_pushed_after_an_abort_and_the_state_is_closed_once(backend: str, stage: str) -> None:
    async def scenario() -> None:
        async with replica(backend, stage) as one:
            await one.submit("idle", "echo x", final=False)
            await one.sink.until(lambda: len(one.sink.of("idle")) >= 1)
            await one.submit("flood", "flood", final=False)
            await one.sink.until(lambda: len(one.sink.of("flood")) > 30)
            await one.update("flood", "echo later")
            await one.client.abort(["flood", "idle", "unknown"])
            seen = len(one.sink.outputs)
            await settled(one, opened=2)
            assert {output.request_id for output in one.sink.outputs[seen:]}.isdisjoint({"flood", "idle"})
            assert not one.sink.deaths

    play(scenario)


def test_an_id_may_be_used_again_after_an_abort(backend: str, stage: str) -> None:
    async def scenario() -> None:
        async with replica(backend, stage) as one:
            await one.submit("r", "flood", final=False)
            await one.sink.until(lambda: len(one.sink.of("r")) > 10)
            await one.client.abort(["r"])
            del one.sink.outputs[:]
            outputs = await one.ask("r", "echo fresh")
            assert "".join(output.text for output in outputs) == "fresh", (
                "nothing of the old request gets into the new one"
            )

    play(scenario)


def test_an_error_ends_its_request_and_no_other(backend: str, stage: str) -> None:
    async def scenario() -> None:
        async with replica(backend, stage) as one:
            await one.submit("other", "count 1", final=False)
            before, failed = await one.ask("r", "raise boom")
            assert before.text == "before"
            assert failed.error is not None
            assert "boom" in failed.error.message
            assert not failed.finished
            await one.update("other", "echo fine", final=True)
            await one.sink.until(lambda: one.sink.ended("other"))
            assert one.sink.text_of("other").endswith("fine")
            await settled(one, opened=2)

    play(scenario)


def test_stage_code_whose_own_wait_was_cancelled_fails_its_request(backend: str, stage: str) -> None:
    """Nobody told the replica to stop: a request that ended like this without a word would be waited for for ever."""

    async def scenario() -> None:
        async with replica(backend, stage) as one:
            await one.submit("r", "cancelled", final=False)
            await one.update("r", "echo more", final=True)
            await one.sink.until(lambda: one.sink.ended("r"))
            before, failed = one.sink.of("r")
            assert before.text == "before"
            assert failed.error is not None
            with pytest.raises(StageFault):
                await one.client.call("cancelled", ())
            assert (await one.ask("next", "echo fine"))[-1].text == "fine"
            await settled(one, opened=2)
            assert not one.sink.deaths

    play(scenario)


def test_audio_of_any_size_arrives_as_it_was(backend: str, stage: str) -> None:
    async def scenario() -> None:
        async with replica(backend, stage) as one:
            for size in (0, 1, 65_536, 65_537, 3_000_000, 9_000_000):
                audio = (bytes(range(256)) * (size // 256 + 1))[:size]
                outputs = await one.ask(f"r{size}", "echo x", audio=audio)
                assert outputs[-1].audio == audio, f"{size} bytes"

    play(scenario)


def test_many_requests_at_once_keep_apart(backend: str, stage: str) -> None:
    async def scenario() -> None:
        async with replica(backend, stage) as one:
            names = [f"r{number}" for number in range(200)]
            await asyncio.gather(*(one.submit(name, f"echo {name}") for name in names))
            await one.sink.until(lambda: all(one.sink.ended(name) for name in names))
            assert {name: one.sink.text_of(name) for name in names} == {name: name for name in names}

    play(scenario)


def test_options_and_sampling_reach_the_stage(backend: str, stage: str) -> None:
    async def scenario() -> None:
        async with replica(backend, stage, options={"greeting": "hi"}) as one:
            assert (await one.ask("r", "options"))[-1].text == "hi 17"

    play(scenario)


def test_an_id_that_is_there_is_refused(backend: str, stage: str) -> None:
    async def scenario() -> None:
        async with replica(backend, stage) as one:
            await one.submit("r", "echo x", final=False)
            with pytest.raises(ValueError, match="'r' is already at this replica"):
                await one.submit("r", "echo x", final=False)

    play(scenario)


def test_a_closed_replica_takes_nothing_and_closing_again_is_harmless(backend: str, stage: str) -> None:
    async def scenario() -> None:
        async with replica(backend, stage) as one:
            await one.submit("r", "flood", final=False)
            await one.sink.until(lambda: len(one.sink.outputs) > 3)
            assert one.client.healthy
            await one.client.close()
            seen = len(one.sink.outputs)
            await one.client.close()
            assert not one.client.healthy
            with pytest.raises(Exception, match="not running"):
                await one.submit("late", "echo x")
            await one.client.abort(["r"])
            assert len(one.sink.outputs) == seen
            assert one.sink.deaths == [], "an orderly end is no death"

    play(scenario)


def test_a_stage_that_cannot_load_says_why(backend: str, stage: str) -> None:
    async def scenario() -> None:
        async with replica(backend, stage, options={"load": "fail"}):
            pytest.fail("started")

    with pytest.raises(Exception, match="the weights are missing"):
        play(scenario)


def test_only_what_exists_is_left_out() -> None:
    assert {name for reasons in LEFT_OUT.values() for name in reasons} <= set(globals())
