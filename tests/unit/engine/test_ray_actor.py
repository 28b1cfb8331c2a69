"""The actor without Ray: order, bounds, and what is said when Ray is not installed."""

from __future__ import annotations

import asyncio
import importlib
import os
import threading
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from duologue.clock import AsyncioRuntime
from duologue.config.pipeline import RayPlacement, StageConfig
from duologue.engine.stages import ray_client
from duologue.engine.stages.frames import Abort, Configure, Output, Submit, ToWorker, Update, from_worker
from duologue.engine.stages.process import WorkerSpec
from duologue.engine.stages.ray_actor import WINDOW, Outbox, StageActor
from duologue.engine.stages.ray_client import RayClient
from duologue.errors import StageFault
from duologue.outputs import RequestOutput
from tests.integration.backends.replica import STAGES, Recorder, piece

LONG_S = 30.0  # never waited for by a test that passes


def actor(stage: str = "Blocking", **options: str) -> StageActor:
    made = StageActor()
    pid, problem = made.configure(msgspec.msgpack.encode(Configure(f"{STAGES}:{stage}", options)))
    assert (pid, problem) == (os.getpid(), None)
    return made


def deliver(made: StageActor, sequence: int, message: ToWorker) -> None:
    made.deliver(sequence, msgspec.msgpack.encode(message))


def outputs_of(made: StageActor, number: int) -> list[RequestOutput]:
    """Everything of request ``number`` up to its end."""
    found: list[RequestOutput] = []
    while not found or not (found[-1].finished or found[-1].error):
        for data in made.fetch(LONG_S)[1]:
            message = from_worker.decode(data)
            assert isinstance(message, Output)
            if message.number == number:
                found.append(message.output)
    return found


def test_messages_are_worked_in_the_order_of_their_numbers() -> None:
    made = actor()
    deliver(made, 3, Update(1, piece("r", "echo c")))
    deliver(made, 2, Update(1, piece("r", "echo b", final=False)))
    assert made.fetch(0.0) == (0, [], 0), "nothing is taken before the first one is there"
    deliver(made, 1, Submit(1, piece("r", "echo a", final=False)))
    assert [output.text for output in outputs_of(made, 1)] == ["a", "b", "c"]


def test_the_window_is_told_of_though_nothing_is_put_out() -> None:
    made = actor()
    for sequence in range(1, WINDOW // 2 + 1):
        deliver(made, sequence, Abort((sequence,)))
    assert made.fetch(LONG_S) == (WINDOW // 2, [], 0)


def test_a_fetch_returns_empty_when_its_time_is_over() -> None:
    assert Outbox().fetch(0.0) == (0, [], 0)


def test_a_full_outbox_holds_the_stage_until_it_is_fetched() -> None:
    box = Outbox(most_bytes=20_000)  # the texts outweigh whatever else an output carries
    pushed = threading.Semaphore(0)

    def fill() -> None:
        for _ in range(50):
            box.push(1, RequestOutput(request_id="r", text="x" * 4_000))
            pushed.release()

    thread = threading.Thread(target=fill)
    thread.start()
    for _ in range(5):
        assert pushed.acquire(timeout=LONG_S)
    seen = 0
    most = 0
    while seen < 50:
        _, batch, held = box.fetch(LONG_S)
        assert held >= sum(map(len, batch)) and held < 20_000 + 5_000
        seen += len(batch)
        most = max(most, len(batch))
    thread.join()
    assert seen == 50
    assert most <= 7, "no more than fits was ever in it"


@pytest.mark.parametrize("room", [1, 0, -1])
def test_more_waits_from_the_limit_on(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """``room`` bytes are left when one more output comes."""
    probe = Outbox()
    probe.push(1, RequestOutput(request_id="r"))
    box = Outbox(most_bytes=probe._bytes + room)
    box.push(1, RequestOutput(request_id="r"))
    goes: list[bool] = []
    monkeypatch.setattr(box._changed, "wait_for", lambda ready, timeout=None: goes.append(ready()))
    box.push(1, RequestOutput(request_id="r"))
    assert goes == [room > 0]


def test_closing_frees_whoever_waits_for_room() -> None:
    box = Outbox(most_bytes=1)
    box.push(1, RequestOutput(request_id="r"))
    thread = threading.Thread(target=box.push, args=(1, RequestOutput(request_id="r")))
    thread.start()
    box.close()
    thread.join(LONG_S)
    assert not thread.is_alive()


def test_an_output_that_cannot_be_sent_is_an_error_of_its_request() -> None:
    made = actor()
    deliver(made, 1, Submit(1, piece("r", "unencodable")))
    failed = outputs_of(made, 1)[0]
    assert failed.error is not None
    assert failed.error.code == "payload_unencodable"


def test_a_stage_that_cannot_be_loaded_says_why() -> None:
    made = StageActor()
    _, problem = made.configure(msgspec.msgpack.encode(Configure(f"{STAGES}:Blocking", {"load": "fail"})))
    assert problem == "StageFault: the weights are missing"


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> object:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", absent)

    async def scenario() -> None:
        runtime = AsyncioRuntime()
        client = RayClient(WorkerSpec(factory=f"{STAGES}:Blocking"), RayPlacement(), runtime=runtime)
        with pytest.raises(StageFault, match=r"pip install 'duologue\[ray\]'"):
            await client.start(Recorder())
        assert not client.healthy
        await client.close()
        await runtime.aclose()

    asyncio.run(scenario())


def test_the_placement_is_checked_when_it_is_configured() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"lasers must be 0 or more, got -1"):
        msgspec.convert(
            {"name": "a", "factory": "m:f", "backend": "ray", "ray": {"resources": {"lasers": -1.0}}}, StageConfig
        )


class Method:
    """A method of an actor, as Ray offers it."""

    def __init__(self, answer: Callable[..., Awaitable[object]]) -> None:
        self.remote = answer

    def options(self, **options: str) -> Method:
        del options
        return self


class Cluster:
    """Ray with one actor that takes whatever it is sent, and says of it what the test lets it say."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[tuple[int, list[bytes], int]] = asyncio.Queue(1)
        self.configure = Method(lambda data: self._answer((1, None)))
        self.deliver = Method(lambda sequence, data: self._answer(None))
        self.fetch = Method(lambda within_s: self.told.get())

    def _answer(self, value: object) -> Awaitable[object]:
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        answer.set_result(value)
        return answer

    def is_initialized(self) -> bool:
        return True

    def remote(self, **groups: int) -> Callable[[type], Method]:
        del groups
        return lambda _: Method(lambda: self)  # type: ignore[arg-type, return-value]

    def kill(self, actor: object) -> None:
        assert actor is self


def test_a_client_sends_a_window_ahead_of_what_was_taken_and_then_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    monkeypatch.setattr(ray_client, "load_ray", lambda module="ray": cluster)

    async def scenario() -> None:
        runtime = AsyncioRuntime()
        client = RayClient(WorkerSpec(factory=f"{STAGES}:Blocking"), RayPlacement(), runtime=runtime)
        await client.start(Recorder())
        sent = [asyncio.ensure_future(client.submit(piece(f"r{number}", "x"))) for number in range(WINDOW + 1)]
        for taken, through in ((0, WINDOW - 1), (1, WINDOW - 1), (2, WINDOW + 1)):
            cluster.told.put_nowait((taken, [], 10 + taken))
            for _ in range(10):
                await asyncio.sleep(0)
            assert sum(task.done() for task in sent) == through
            assert client.held() == {"sent_ahead": WINDOW + 1 - taken, "outbox_bytes": 10 + taken}
        await client.close()
        await runtime.aclose()

    asyncio.run(scenario())
