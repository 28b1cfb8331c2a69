"""What only worker processes can do wrong: die, hang, refuse to end, outlive their parent."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable

import msgspec
import pytest

from duologue.clock import AsyncioRuntime
from duologue.config.pipeline import EdgeConfig, PipelineConfig, StageConfig
from duologue.engine.assembly import build_edges, build_pools
from duologue.engine.messages import AddRequest, EngineQueueMessage, ErrorMessage, OutputMessage, Shutdown
from duologue.engine.orchestrator import Orchestrator
from duologue.engine.stages.process import ProcessClient
from duologue.engine.stages.supervisor import RestartPolicy
from duologue.errors import ClientFault, StageFault
from duologue.outputs import StagePrompt
from tests.integration.backends.replica import (
    PATHS,
    PATIENCE_S,
    REPOSITORY,
    SPEC,
    STAGES,
    Replica,
    piece,
    play,
    replica,
)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what announces itself by no event."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def process_of(one: Replica) -> int:
    assert isinstance(one.client, ProcessClient)
    assert one.client.pid is not None
    return one.client.pid


def test_a_killed_worker_is_noticed_once_and_takes_no_more() -> None:
    async def scenario() -> None:
        async with replica("process", "Blocking") as one:
            await one.submit("r", "flood", final=False)
            await one.sink.until(lambda: len(one.sink.outputs) > 5)
            os.kill(process_of(one), signal.SIGKILL)
            await one.sink.until(lambda: bool(one.sink.deaths))
            (death,) = one.sink.deaths
            assert isinstance(death, StageFault)
            assert f"(process {process_of(one)}) ended with SIGKILL" in death.message
            assert not one.client.healthy
            with pytest.raises(StageFault, match="not running"):
                await one.submit("late", "echo x")
            await one.client.abort(["r"])
            await one.client.close()
            assert len(one.sink.deaths) == 1

    play(scenario)


def test_a_worker_that_exits_by_itself_is_a_death_too() -> None:
    async def scenario() -> None:
        async with replica("process", "Blocking") as one:
            await one.submit("r", "die")
            await one.sink.until(lambda: bool(one.sink.deaths))
            assert "ended with exit code 7" in str(one.sink.deaths[0])

    play(scenario)


def test_a_worker_that_hangs_is_killed_after_missed_heartbeats() -> None:
    async def scenario() -> None:
        async with replica("process", "Blocking", heartbeat_s=0.05, heartbeat_timeout_s=0.5) as one:
            await one.submit("r", "freeze")
            await one.sink.until(lambda: bool(one.sink.deaths))
            assert "has not answered" in str(one.sink.deaths[0])

    play(scenario)


def test_an_idle_worker_that_answers_is_left_alone() -> None:
    async def scenario() -> None:
        async with replica("process", "Blocking", heartbeat_s=0.02, heartbeat_timeout_s=5.0) as one:
            client = one.client
            assert isinstance(client, ProcessClient)
            heard = client._heard_at
            await until(lambda: client._heard_at != heard)
            assert one.sink.deaths == []

    play(scenario)


@pytest.mark.parametrize(("stopped", "timeout_s"), [(False, 3.0), (True, 0.4)])
def test_closing_is_bounded_even_if_the_worker_does_not_listen(stopped: bool, timeout_s: float) -> None:
    async def scenario() -> None:
        async with replica("process", "Blocking", options={"load": "never end"}, close_timeout_s=timeout_s) as one:
            process = one.client._process  # type: ignore[attr-defined]
            if stopped:
                os.kill(process.pid, signal.SIGSTOP)
            await one.client.close()
            # SIGTERM ends one that does not end by itself, only SIGKILL one that does not run at all.
            assert process.returncode == (-signal.SIGKILL if stopped else -signal.SIGTERM)

    play(scenario)


@pytest.mark.parametrize(
    ("stage", "changes", "expected"),
    [
        ("Blocking", {"options": {"load": "exit"}}, "ended with exit code 3"),
        ("Blocking", {"options": {"load": "hang"}, "start_timeout_s": 0.5}, "not ready after 0.5 s.*start_timeout_s"),
        ("Blocking", {"options": {"colour": "red"}}, "unexpected keyword argument 'colour'"),
        ("Missing", {}, "has no 'Missing'"),
        ("not_a_stage", {}, "made a object, which is not a stage"),
    ],
)
def test_a_worker_that_cannot_start_says_why(stage: str, changes: dict[str, object], expected: str) -> None:
    async def scenario() -> None:
        async with replica("process", stage, **changes):
            pytest.fail("started")

    with pytest.raises(StageFault, match=expected):
        play(scenario)


def test_an_output_that_cannot_be_sent_fails_its_request_alone() -> None:
    async def scenario() -> None:
        async with replica("process", "Blocking") as one:
            (failed,) = await one.ask("r", "unencodable")
            assert failed.error is not None
            assert failed.error.code == "payload_unencodable"
            assert (await one.ask("next", "echo fine"))[-1].text == "fine"

    play(scenario)


def test_an_input_that_cannot_be_sent_is_the_callers_fault_and_leaves_no_trace() -> None:
    async def scenario() -> None:
        async with replica("process", "Blocking") as one:
            bad = piece("r", "echo x")
            bad.prompt = msgspec.structs.replace(bad.prompt, options={"what": object()})  # type: ignore[dict-item]
            with pytest.raises(ClientFault, match="can't be sent"):
                await one.client.submit(bad)
            assert (await one.ask("r", "echo fine"))[-1].text == "fine"

    play(scenario)


def test_what_a_worker_prints_is_in_the_log_under_its_name(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with replica("process", "Blocking") as one:
            await one.ask("r", "print words for the log")
            await until(lambda: sum("words for the log" in record.getMessage() for record in caplog.records) == 2)
        (name,) = {record.worker for record in caplog.records if "words" in record.getMessage()}  # type: ignore[attr-defined]
        assert name == "worker"

    with caplog.at_level(logging.INFO, logger="duologue"):
        play(scenario)


def test_a_worker_gets_one_inference_thread_no_client_keys_and_its_own_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUOLOGUE__SERVER__API_KEYS", "[one]")

    async def scenario() -> None:
        async with replica("process", "Blocking") as one:
            assert (await one.ask("keys", "environment DUOLOGUE__SERVER__API_KEYS"))[-1].text == "None"
            assert (await one.ask("r", "environment OMP_NUM_THREADS"))[-1].text == os.environ.get(
                "OMP_NUM_THREADS", "1"
            )
            assert os.getsid(process_of(one)) != os.getsid(0), "Ctrl-C must not reach it"

    play(scenario)


@pytest.mark.parametrize(("slot", "device"), [(0, "3"), (1, "5"), (2, "3")])
def test_workers_see_their_devices_in_turn(slot: int, device: str) -> None:
    spec = msgspec.structs.replace(SPEC, factory=f"{STAGES}:Blocking", devices=("3", "5"))

    async def scenario() -> None:
        runtime = AsyncioRuntime()
        client = ProcessClient(spec, runtime=runtime)
        one = Replica(client, runtime)
        client.fill(slot)
        try:
            await client.start(one.sink)
            assert (await one.ask("r", "environment CUDA_VISIBLE_DEVICES"))[-1].text == device
        finally:
            await client.close()
            await runtime.aclose()

    play(scenario)


def test_starting_and_closing_leaks_no_descriptors() -> None:
    async def scenario() -> None:
        async def cycle() -> None:
            async with replica("process", "Blocking") as one:
                await one.ask("r", "echo x", audio=bytes(200_000))

        await cycle()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            await cycle()
        assert len(os.listdir("/proc/self/fd")) == before

    play(scenario)


PARENT = textwrap.dedent(
    """
    import asyncio, signal, sys
    from duologue.clock import AsyncioRuntime
    from duologue.engine.stages.process import ProcessClient
    from tests.integration.backends.replica import SPEC, Recorder, piece

    async def main():
        client = ProcessClient(SPEC, runtime=AsyncioRuntime())
        await client.start(Recorder())
        await client.submit(piece("r", sys.argv[1]))
        print(client.pid, flush=True)
        await asyncio.Event().wait()

    asyncio.run(main())
    """
)


@pytest.mark.parametrize("work", ["flood", "freeze"])
def test_a_worker_dies_with_its_parent_however_busy_it_is(work: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, work], stdout=subprocess.PIPE, cwd=REPOSITORY, text=True
    ) as parent:
        assert parent.stdout is not None
        worker = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
        parent.wait(PATIENCE_S)
        try:
            gone, _, _ = select.select([worker], [], [], PATIENCE_S)
        finally:
            os.close(worker)
        assert gone, "the worker outlived its parent"


class Outbox:
    def __init__(self) -> None:
        self.messages: list[EngineQueueMessage] = []
        self.changed = asyncio.Event()

    def put_nowait(self, message: EngineQueueMessage, /) -> None:
        self.messages.append(message)
        self.changed.set()

    async def until_ended(self, request_id: str) -> OutputMessage | ErrorMessage:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for message in self.messages:
                    mine = isinstance(message, OutputMessage | ErrorMessage) and message.request_id == request_id
                    if mine and (isinstance(message, ErrorMessage) or message.finished):  # type: ignore[attr-defined]
                        return message  # type: ignore[return-value]
                self.changed.clear()
                await self.changed.wait()


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("killed", "ended with SIGKILL, perhaps for want of memory"),
        ("hung", "has not answered for"),
        ("out of memory", "ended with SIGKILL, perhaps for want of memory"),
        ("exited", "ended with exit code 7"),
    ],
)
def test_field_F50_a_pipeline_of_workers_survives_the_end_of_one(how: str, told: str) -> None:
    environment = {"PYTHONPATH": PATHS}
    pipeline = PipelineConfig(
        stages=(
            StageConfig(
                name="first",
                factory=f"{STAGES}:Parallel",
                environment=environment,
                heartbeat_s=0.5,
                heartbeat_timeout_s=3.0,
            ),
            StageConfig(name="second", factory=f"{STAGES}:Asynchronous", environment=environment, replicas=2),
            StageConfig(name="third", factory=f"{STAGES}:Blocking", backend="inproc"),
        ),
        edges=(
            EdgeConfig(source="first", target="second", processor=f"{__name__}:say_again"),
            EdgeConfig(source="second", target="third", processor=f"{__name__}:say_again"),
        ),
    )

    async def scenario() -> None:
        runtime = AsyncioRuntime()
        pools = build_pools(pipeline, runtime)
        pools[0].replicas._slots[0].backoff.policy = RestartPolicy(first_s=0.01)
        outbox = Outbox()
        engine = Orchestrator(
            stage_pools=pools,
            edges=build_edges(pipeline, {(e.source, e.target): say_again for e in pipeline.edges}),
            output_async_queue=outbox,
            rpc_async_queue=outbox,
            runtime=runtime,
        )
        run = runtime.spawn(engine.run(), name="engine")
        await engine.start()
        engine.post(AddRequest(request_id="a", prompt=StagePrompt(text="echo hello")))
        ended = await outbox.until_ended("a")
        assert isinstance(ended, OutputMessage)
        assert ended.output.text == "hello"
        engine.post(AddRequest(request_id="b", prompt=StagePrompt(text="flood")))
        engine.post(AddRequest(request_id="elsewhere", prompt=StagePrompt(text="count 3"), entry_stage_id=1))
        client = pools[0].stage_client
        assert isinstance(client, ProcessClient)
        end_worker(how, client, engine)
        failed = await outbox.until_ended("b")
        assert isinstance(failed, ErrorMessage)
        assert (failed.code, told in failed.message) == ("replica_unavailable", True), failed.message
        assert isinstance(await outbox.until_ended("elsewhere"), OutputMessage), "survivors go on"
        await until(lambda: bool(pools[0].live_replica_ids))
        assert pools[0].live_replica_ids == [1]
        engine.post(AddRequest(request_id="c", prompt=StagePrompt(text="echo again")))
        ended = await outbox.until_ended("c")
        assert isinstance(ended, OutputMessage)
        assert [message.request_id for message in outbox.messages if isinstance(message, ErrorMessage)].count("b") == 1
        assert {name: size for name, size in engine.tables().items() if size} == {}
        engine.post(Shutdown())
        await run
        await runtime.aclose()

    play(scenario)


def end_worker(how: str, client: ProcessClient, engine: Orchestrator) -> None:
    """Bring about the end of the first stage's worker, from outside or by what its stage does."""
    assert client.pid is not None
    match how:
        case "killed":
            os.kill(client.pid, signal.SIGKILL)
        case "hung":
            os.kill(client.pid, signal.SIGSTOP)
        case "out of memory":
            engine.post(AddRequest(request_id="greedy", prompt=StagePrompt(text="exhaust")))
        case _:
            engine.post(AddRequest(request_id="rude", prompt=StagePrompt(text="die")))


def test_the_first_output_tells_how_long_its_request_waited_for_the_stage() -> None:
    async def scenario() -> None:
        async with replica("process", "Blocking") as one:
            await one.submit("first", "flood")
            await one.sink.until(lambda: len(one.sink.of("first")) > 3)
            await one.submit("second", "count 3")
            seen = len(one.sink.of("first"))
            await one.sink.until(lambda: len(one.sink.of("first")) > seen + 3_000)
            await one.client.abort(["first"])
            await one.sink.until(lambda: one.sink.ended("second"))
            waited = [output.queue_s for output in one.sink.of("second")]
            assert waited[0] > 0
            assert set(waited[1:]) == {0.0}

    play(scenario)


def test_want_of_memory_in_stage_code_fails_its_request_alone() -> None:
    async def scenario() -> None:
        async with replica("process", "Blocking") as one:
            (failed,) = await one.ask("r", "memory")
            assert failed.error is not None
            assert "MemoryError: no room" in failed.error.message
            assert (await one.ask("s", "echo x"))[-1].text == "x"
            assert one.sink.deaths == []

    play(scenario)


def say_again(source):  # type: ignore[no-untyped-def]
    """An edge: tell the next stage to echo."""
    return StagePrompt(text=f"echo {source.text}")
