"""When a worker that does not answer is given up, and when only its parent was held up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from duologue.engine.stages.process import ProcessClient, WorkerSpec
from duologue.outputs import RequestOutput
from duologue.sim.loop import VirtualRuntime, virtual


class Sink:
    def __init__(self) -> None:
        self.deaths: list[BaseException] = []

    def on_output(self, output: RequestOutput) -> None:
        raise AssertionError(output)

    def on_dead(self, error: BaseException) -> None:
        self.deaths.append(error)


class Clock(VirtualRuntime):
    """Time that the test sets, timers that it fires."""

    def __init__(self) -> None:
        self.time_s = 100.0
        self.due: tuple[float, Callable[[], object]] | None = None

    def now(self) -> float:
        return self.time_s

    def call_at(self, when: float, callback: Any, *args: Any) -> Any:
        self.due = (when, lambda: callback(*args))

        class Handle:
            def cancel(self) -> None:
                pass

        return Handle()

    def fire(self, late_s: float = 0.0) -> None:
        assert self.due is not None
        when, callback = self.due
        self.time_s = when + late_s
        callback()


def client(clock: Clock) -> tuple[ProcessClient, Sink]:
    one = ProcessClient(WorkerSpec(factory="p:S", heartbeat_s=2.0, heartbeat_timeout_s=10.0), runtime=clock)
    sink = Sink()
    one._sink, one._up, one._heard_at = sink, True, clock.time_s
    one._next_beat(clock.time_s)
    return one, sink


@virtual
async def test_silence_beyond_the_timeout_is_a_death_reported_once() -> None:
    clock = Clock()
    one, sink = client(clock)
    for _ in range(5):
        clock.fire()
    assert one.healthy
    clock.fire()
    assert not one.healthy
    assert "has not answered for 12.0 s" in str(sink.deaths[0])
    one.connection_lost(None)
    assert len(sink.deaths) == 1


@virtual
async def test_a_parent_that_was_held_up_does_not_blame_its_worker() -> None:
    clock = Clock()
    one, sink = client(clock)
    clock.fire(late_s=60.0)
    assert one.healthy
    assert sink.deaths == []
    for _ in range(6):
        clock.fire()
    assert len(sink.deaths) == 1, "it is given the full time-out from then on, and no more"
