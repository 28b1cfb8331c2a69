"""The native model as a client meets it: through the real server and engine, in virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from duologue.config.service import DuologueConfig, ModelChoice
from duologue.models.native.shape import RATE_HZ
from duologue.server.assembly import build_model
from duologue.server.serve import ServeError
from duologue.sim.loop import VirtualRuntime, virtual
from tests.unit.native.alone import alone
from tests.unit.native.server import config, host, quiet, sound


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("chunk_ms", [20, 80, 100, 330])
def test_it_answers_by_itself_and_what_is_heard_is_what_the_network_says(folder: Path, chunk_ms: int) -> None:
    @virtual
    async def run(runtime: VirtualRuntime) -> None:
        async with host(runtime, config(folder)) as server, server.talker() as talker:
            heard = quiet(200) + sound(700) + quiet(4_000)
            await talker.stream(heard, chunk_ms=chunk_ms)
            done = await talker.until("response.done")
            assert done["response"]["status"] == "completed"
            assert talker.kinds.count("response.created") == 1
            assert talker.audio() == alone(heard)
            (part,) = done["response"]["output"][0]["content"]
            words = part["transcript"].split()
            assert len(words) > 3 and part["transcript"].endswith(".") and words[0][0].isupper()

    run()


@virtual
async def _two_at_once(runtime: VirtualRuntime, folder: Path) -> None:
    async with host(runtime, config(folder)) as server, server.talker() as ours, server.talker() as theirs:
        mine, yours = sound(500) + quiet(3_500), quiet(300) + sound(1_200) + quiet(4_500)
        await asyncio.gather(ours.stream(mine), theirs.stream(yours))
        for talker, heard in ((ours, mine), (theirs, yours)):
            await talker.until("response.done")
            assert talker.audio() == alone(heard)


def test_two_sessions_at_once_are_each_what_it_is_alone(folder: Path) -> None:
    _two_at_once(folder)


@virtual
async def _mute(runtime: VirtualRuntime, folder: Path) -> None:
    async with host(runtime, config(folder)) as server, server.talker() as talker:
        await talker.stream(sound(800))
        done = await talker.until("response.done")
        assert done["response"]["status"] == "completed"
        await asyncio.sleep(60.0)
        assert talker.kinds.count("response.created") == 1


def test_a_client_that_goes_mute_is_answered_from_silence(folder: Path) -> None:
    """Field case F06 and F22: the model's clock does not stop with the microphone."""
    _mute(folder)


@virtual
async def _barge_in(runtime: VirtualRuntime, folder: Path) -> None:
    async with host(runtime, config(folder)) as server, server.talker() as talker:
        await talker.stream(sound(2_000) + quiet(1_040))
        first = await talker.until("response.created")
        await talker.send("response.cancel")
        done = await talker.until("response.done")
        assert done["response"]["status"] == "cancelled"
        frames = len(talker.frames)
        await talker.stream(quiet(2_000))
        assert not [frame for frame in talker.frames[frames:] if frame["type"].startswith("response.output_audio")]
        again = sound(600) + quiet(3_500)
        await talker.stream(again)
        second = await talker.until("response.done", 2)
        assert second["response"]["id"] != first["response"]["id"]
        assert talker.audio(second["response"]["id"]) == alone(quiet(2_000) + again), "nothing is left of before"


def test_a_cancel_ends_the_answer_and_what_the_model_knew(folder: Path) -> None:
    _barge_in(folder)


@virtual
async def _interrupts_itself(runtime: VirtualRuntime, folder: Path) -> None:
    async with host(runtime, config(folder)) as server, server.talker() as talker:
        await talker.stream(sound(3_000) + quiet(1_000))
        await talker.until("response.created")
        started = runtime.now()
        await talker.stream(sound(1_000))
        done = await talker.until("response.done")
        assert done["response"]["status"] == "completed" and runtime.now() - started < 1.6
        await talker.stream(quiet(4_000))
        await talker.until("response.done", 2)


def test_it_yields_to_speech_by_its_own_decision(folder: Path) -> None:
    _interrupts_itself(folder)


@virtual
async def _listens(runtime: VirtualRuntime, folder: Path) -> None:
    async with host(runtime, config(folder)) as server, server.talker("duplex=1&model=native") as talker:
        await talker.stream(quiet(20_000))
        assert talker.kinds.count("response.listen") == 1
        assert not talker.of("response.created") and not talker.of("error")


def test_listening_is_said_once_and_not_in_every_frame(folder: Path) -> None:
    _listens(folder)


@virtual
async def _paced(runtime: VirtualRuntime, folder: Path) -> None:
    async with host(runtime, config(folder)) as server, server.talker() as talker:
        await talker.stream(sound(900) + quiet(5_000), chunk_ms=80)
        await talker.until("response.done")
        deltas = [i for i, kind in enumerate(talker.kinds) if kind == "response.output_audio.delta"]
        spent_s = talker.times[deltas[-1]] - talker.times[deltas[0]]
        said_s = len(talker.audio()) / 2 / RATE_HZ
        assert said_s - 0.5 <= spent_s <= said_s + 0.1


def test_it_speaks_at_the_pace_of_time(folder: Path) -> None:
    _paced(folder)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"seeds": 1}, "model.options.seeds is not an option of 'native'"),
        ({"backend": "vllm"}, "model.options.backend must be 'process' or 'inproc'"),
        ({"seed": -1}, "model.options.seed must be a whole number"),
        ({"replicas": "two"}, "model.options.replicas must be a whole number"),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, str | int], says: str) -> None:
    @virtual
    async def run(runtime: VirtualRuntime) -> None:
        with pytest.raises(ServeError, match=says):
            build_model(DuologueConfig(model=ModelChoice(plugin="native", options=options)), runtime)

    run()


@virtual
async def _lost(runtime: VirtualRuntime, folder: Path, lost_after_ms: int) -> None:
    async with host(runtime, config(folder)) as server, server.talker("model=native&duplex=1") as talker:
        await talker.send("session.update", session={"audio": {"input": {"sample_rate_hz": RATE_HZ}}})
        await talker.until("session.updated")
        heard = sound(600) + quiet(4_000) + quiet(320) + sound(800) + quiet(4_000)
        split = RATE_HZ * lost_after_ms // 1000 * 2
        await talker.stream(heard[:split], chunk_ms=80)
        server.kill_worker("killed")
        await talker.stream(heard[split:], chunk_ms=80)
        recovered = await talker.until("session.recovered")
        assert (recovered["epoch"], recovered["placement_generation"]) == (1, 1)
        await talker.until("response.done", 2)
        assert [done["response"]["status"] for done in talker.of("response.done")] == ["completed"] * 2
        assert talker.audio() == alone(heard), "nobody could tell that anything was lost"
        assert not talker.of("error")


@pytest.mark.parametrize("lost_after_ms", [80, 560, 800, 4_400, 5_000])
def test_decision_9_a_conversation_goes_on_at_the_next_worker_as_if_nothing_had_happened(
    folder: Path, lost_after_ms: int
) -> None:
    _lost(folder, lost_after_ms)


@virtual
async def _lost_while_speaking(runtime: VirtualRuntime, folder: Path) -> None:
    async with host(runtime, config(folder)) as server, server.talker() as talker:
        await talker.stream(sound(1_000) + quiet(1_400))
        await talker.until("response.output_audio.delta", 3)
        server.kill_worker("killed")
        done = await talker.until("response.done")
        assert done["response"]["status"] == "failed"
        await talker.stream(quiet(2_000))
        assert talker.kinds.count("response.created") == 1, "what was half said is not said again"
        await talker.stream(sound(600) + quiet(4_000))
        assert (await talker.until("response.done", 2))["response"]["status"] == "completed"


def test_an_answer_cut_by_a_loss_is_over_and_the_conversation_goes_on(folder: Path) -> None:
    _lost_while_speaking(folder)
