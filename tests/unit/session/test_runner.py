"""The runner and the channel to the stages: order, tasks, answers, timers and the documented life."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.engine.duplex.commands import (
    AppendAudio,
    CancelResponse,
    CloseSession,
    CommitAudio,
    CreateItem,
    CreateResponse,
    Heartbeat,
    InputItem,
)
from duologue.engine.duplex.contracts import DuplexFence
from duologue.engine.duplex.core.effects import CleanupSession, Effect, Emit
from duologue.engine.duplex.core.session import DuplexEngineSession
from duologue.engine.duplex.events import (
    ErrorRaised,
    HeartbeatAcknowledged,
    InputTranscribed,
    ItemAdded,
    ResponseAudio,
    ResponseCreated,
    ResponseDone,
    SessionClosed,
    SessionExpired,
    SessionUpdated,
)
from duologue.engine.duplex.session.engine_session import DuplexFenceMismatchError
from duologue.errors import ErrorCode, StageFault
from duologue.models.scripted import tone
from duologue.outputs import StageError
from duologue.sim.loop import VirtualRuntime, virtual
from tests.unit.session.desk import Desk, desk
from tests.unit.session.world import RATE_HZ

SECOND = tone(1_000, rate_hz=RATE_HZ)


def ask(there: Desk) -> str:
    """Commit a second of speech and have it answered; returns the request."""
    there.runner.submit(AppendAudio(audio=SECOND))
    there.runner.submit(CommitAudio(create_response=True))
    return there.last_request


# Submitting


@virtual
async def test_a_submission_that_does_not_wait_costs_no_task(runtime: VirtualRuntime) -> None:
    there = desk(runtime, limits=DuplexSessionRuntimeConfig(turns_per_minute=None))
    for _ in range(50):
        request_id = ask(there)
        there.output(request_id, 2, finished=True)
        await asyncio.sleep(0.01)
    assert there.runner.model.submissions == 50
    assert there.runner.model.tasks_spawned == 0
    assert there.runner.session.tables()["append_queue"] == 0


@virtual
async def test_a_submission_that_waits_costs_one_task_and_is_accepted_once(runtime: VirtualRuntime) -> None:
    there = desk(runtime)
    there.port.on_submit = lambda: asyncio.sleep(0.5)
    ask(there)
    assert list(there.runner.tasks.appends) == [there.runner.tasks.tail]
    await asyncio.sleep(0.4)
    assert there.runner.model_state.accepted == 0  # type: ignore[attr-defined]
    await asyncio.sleep(0.2)
    assert there.runner.model_state.accepted == 1  # type: ignore[attr-defined]
    assert (len(there.runner.tasks), there.runner.tasks.tail) == (0, None)


@virtual
async def test_a_submission_that_takes_too_long_is_given_up(runtime: VirtualRuntime) -> None:
    limits = msgspec.structs.replace(DuplexSessionRuntimeConfig(), submit_timeout_s=2.0)
    there = desk(runtime, limits=limits)
    there.port.on_submit = lambda: asyncio.sleep(3600.0)
    request_id = ask(there)
    there.port.on_submit = None
    await asyncio.sleep(1.99)
    assert there.of(ResponseDone) == []
    await asyncio.sleep(0.02)
    assert there.of(ErrorRaised)[0].code == ErrorCode.TIMEOUT
    assert there.of(ResponseDone)[0].status == "failed"
    await asyncio.sleep(0.01)
    assert ((request_id,), True) in there.port.cleaned
    assert len(there.runner.tasks) == 0


@pytest.mark.parametrize("delay_s", [0.0, 0.0005, 0.2])
def test_a_cancel_withdraws_the_submission_in_flight_and_stops_it_afterwards(delay_s: float) -> None:
    @virtual
    async def main(runtime: VirtualRuntime) -> None:
        there = desk(runtime)
        withdrawn = []

        async def stuck() -> None:
            try:
                await asyncio.sleep(3600.0)
            finally:
                await asyncio.sleep(0.005)
                withdrawn.append(len(there.port.cleaned))

        there.port.on_submit = stuck
        request_id = ask(there)
        there.port.on_submit = None
        if delay_s:
            await asyncio.sleep(delay_s)
        there.runner.submit(CancelResponse())
        assert there.of(ResponseDone)[0].status == "cancelled"
        await asyncio.sleep(0.01)
        assert len(withdrawn) == 1
        # Once at least after the submission had ended: the stage may have taken it while it was being withdrawn.
        assert ((request_id,), True) in there.port.cleaned[withdrawn[0] :]
        second = ask(there)
        assert second != request_id
        assert there.runner.session.tables()["orphans"] == 0

    main()


@virtual
async def test_a_port_that_refuses_fails_that_answer_and_forgets_the_request(runtime: VirtualRuntime) -> None:
    there = desk(runtime)

    async def refuse() -> None:
        raise StageFault(ErrorCode.REPLICA_UNAVAILABLE, "No replica is up.")

    there.port.on_submit = refuse
    request_id = ask(there)
    assert there.of(ErrorRaised)[0].code == ErrorCode.REPLICA_UNAVAILABLE
    assert there.of(ResponseDone)[0].error == ErrorCode.REPLICA_UNAVAILABLE
    await asyncio.sleep(0.01)
    assert ((request_id,), True) in there.port.cleaned
    there.port.on_submit = None
    there.runner.submit(CreateResponse())
    assert len(there.of(ResponseCreated)) == 2


@virtual
async def test_pieces_wait_for_each_other_and_keep_their_order(runtime: VirtualRuntime) -> None:
    there = desk(runtime)
    there.port.on_submit = lambda: asyncio.sleep(0.1)
    first = ask(there)
    second_request = CommitAudio(create_response=True)
    there.runner.submit(AppendAudio(audio=SECOND))
    there.runner.submit(second_request)
    assert len(there.port.submitted) == 1
    await asyncio.sleep(0.15)
    there.output(first, 2, finished=True)
    await asyncio.sleep(0.01)
    assert there.port.submitted[0].context.request_id == first
    assert len(there.port.submitted) == 2
    await asyncio.sleep(1.0)


@virtual
async def test_what_cannot_be_cleaned_is_kept_and_tried_again(runtime: VirtualRuntime) -> None:
    there = desk(runtime)

    async def refuse() -> None:
        raise RuntimeError("not now")

    request_id = ask(there)
    there.port.on_cleanup = refuse
    there.runner.submit(CancelResponse())
    await asyncio.sleep(0.01)
    assert there.runner.model.unclean == (request_id,)
    assert f"unregistered {request_id}" in there.manager.steps
    there.port.on_cleanup = None
    there.runner.ending.retry()
    await asyncio.sleep(0.01)
    assert there.runner.model.unclean == ()


@virtual
async def test_what_is_dropped_at_the_very_end_of_a_cleaning_is_cleaned_too(runtime: VirtualRuntime) -> None:
    there = desk(runtime)
    loop = asyncio.get_running_loop()

    async def one_more() -> None:
        there.port.on_cleanup = None
        # Runs when the cleaning has returned and before anybody has been told.
        loop.call_soon(there.runner.model.abort, ("late",))

    ask(there)
    there.port.on_cleanup = one_more
    there.runner.submit(CancelResponse())
    await asyncio.sleep(0.01)
    assert (("late",), True) in there.port.cleaned
    assert there.runner.model.unclean == ()


@virtual
async def test_a_cleanup_that_never_ends_is_given_up_and_tried_again(runtime: VirtualRuntime) -> None:
    there = desk(runtime)
    ask(there)
    there.port.on_cleanup = lambda: asyncio.sleep(3600.0)
    there.runner.submit(CancelResponse())
    await asyncio.sleep(1.0)
    there.runner.ending.retry()
    assert len(there.port.cleaned) == 1, "one clean-up at a time"
    await asyncio.sleep(60.0)
    there.port.on_cleanup = None
    there.runner.ending.retry()
    await asyncio.sleep(0.01)
    assert there.runner.model.unclean == ()


# Items and effects


@virtual
async def test_what_happens_during_a_step_follows_that_step(runtime: VirtualRuntime) -> None:
    there = desk(runtime)
    there.manager.on_emit = lambda event: there.runner.submit(Heartbeat()) if isinstance(event, ItemAdded) else None
    for index in range(3):
        there.runner.submit(CreateItem(item=InputItem(item_id=f"i{index}", role="user", texts=("x",))))
    kinds = [type(event) for event in there.manager.events]
    assert kinds[2:] == [ItemAdded, HeartbeatAcknowledged] * 3
    assert there.manager.numbers == list(range(1, 9))


@virtual
async def test_everything_counts_as_taken_unless_the_consumer_reports(runtime: VirtualRuntime) -> None:
    for reports, untaken in ((False, 0), (True, 3)):
        there = desk(runtime, reports_output=reports)
        there.runner.submit(Heartbeat())
        assert there.runner.session.tables()["untaken"] == untaken


@virtual
async def test_paced_audio_leaves_in_time_with_one_timer(runtime: VirtualRuntime) -> None:
    there = desk(runtime)
    request_id = ask(there)
    there.output(request_id, 2, audio=tone(2_000, rate_hz=24_000), audio_rate_hz=24_000, text="long", finished=True)
    sent = len(there.of(ResponseAudio))
    assert sent == 4, "400 ms ahead and no more"
    armed = 0
    call_at = runtime.call_at

    def counting(when: float, callback: object, *args: object) -> object:
        nonlocal armed
        armed += getattr(callback, "__name__", "") == "_timer_fired"
        return call_at(when, callback, *args)  # type: ignore[arg-type]

    runtime.call_at = counting  # type: ignore[method-assign,assignment]
    for _ in range(10):
        there.runner.submit(Heartbeat())
    assert armed == 0, "a later or equal deadline needs no new timer"
    await asyncio.sleep(3.0)
    assert len(there.of(ResponseAudio)) == 20
    assert there.of(ResponseDone)[0].status == "completed"
    assert armed <= 20


# Stage outputs and failures


@virtual
async def test_the_plugin_decides_what_is_forwarded(runtime: VirtualRuntime) -> None:
    there = desk(runtime)
    request_id = ask(there)
    assert there.output(request_id, 0, text="hello", finished=True, metadata={"spoken": True}) is False
    assert there.of(InputTranscribed)[0].text == "hello"
    assert there.output(request_id, 1, text="Sentence.", segment_finished=True) is False
    assert there.output(request_id, 2, text="Sentence.", audio=tone(100, rate_hz=24_000), audio_rate_hz=24_000) is True
    assert there.of(ResponseAudio)[0].text == "Sentence."
    there.runner.submit(CloseSession())
    assert there.output(request_id, 1, text="late", segment_finished=True) is True


@virtual
async def test_a_failure_is_told_at_once_and_never_overtakes_an_output(runtime: VirtualRuntime) -> None:
    there = desk(runtime)
    request_id = ask(there)
    there.output(request_id, 2, text="One.", audio=tone(100, rate_hz=24_000), audio_rate_hz=24_000)
    there.runner.on_stage_failure(2, ValueError("secret words"), request_id=request_id)
    kinds = [type(event).__name__ for event in there.manager.events]
    assert kinds[-3:] == ["ResponseAudio", "ErrorRaised", "ResponseDone"]
    error = there.of(ErrorRaised)[0]
    assert (error.code, "secret" in error.message) == (ErrorCode.RUNTIME_STREAM_FAILED, False)
    there.runner.on_stage_failure(2, ValueError("again"), request_id=request_id)
    assert len(there.of(ErrorRaised)) == 1


@virtual
async def test_an_output_with_an_error_is_a_failure(runtime: VirtualRuntime) -> None:
    there = desk(runtime)
    request_id = ask(there)
    assert there.output(request_id, 1, error=StageError("no_such_code", "It broke.")) is True
    assert there.of(ErrorRaised)[0].code == ErrorCode.RUNTIME_STREAM_FAILED
    assert there.of(ResponseDone)[0].status == "failed"


@virtual
async def test_binding_a_request_of_an_ended_epoch_is_refused(runtime: VirtualRuntime) -> None:
    there = desk(runtime)
    request_id = ask(there)
    fence = there.port.submitted[-1].context.fence
    there.runner.bind_stage_request(1, request_id, fence=fence)
    there.runner.submit(CancelResponse())
    with pytest.raises(DuplexFenceMismatchError):
        there.runner.session.bind_stage_request(1, request_id, fence=fence)
    with pytest.raises(DuplexFenceMismatchError):
        there.runner.session.bind_stage_request(1, request_id, fence=DuplexFence("s1", 9, 9))


# Life


@virtual
async def test_a_bare_close_ends_after_its_own_cleaning(runtime: VirtualRuntime) -> None:
    there = desk(runtime)
    there.port.on_cleanup = lambda: asyncio.sleep(1.0)
    ask(there)
    began = runtime.now()
    await there.runner.close("bye")
    assert runtime.now() - began == pytest.approx(1.0)
    assert there.manager.steps[-3:] == ["slot free", "SessionClosed", "ended"]
    assert there.of(ResponseDone)[0].status == "cancelled"
    assert f"unregistered {there.last_request}" in there.manager.steps
    assert (there.runner.closed_emitted, there.runner.closing) == (True, True)
    closed = there.of(SessionClosed)[0]
    assert (closed.reason, closed.slot_released) == ("bye", True)


@virtual
async def test_a_bare_close_whose_stages_stay_unclean_says_so(runtime: VirtualRuntime) -> None:
    there = desk(runtime)
    ask(there)
    there.port.on_cleanup = lambda: asyncio.sleep(20.0)
    await there.runner.expire("idle")
    expired = there.of(SessionExpired)[0]
    assert (expired.reason, expired.slot_released) == ("idle", False)
    await there.runner.shutdown()


@virtual
async def test_whoever_claims_the_terminal_is_the_only_one_to_send_it(runtime: VirtualRuntime) -> None:
    there = desk(runtime)
    ask(there)
    await there.runner.close("bye", emit_closed=False)
    assert there.runner.closed_emitted is False
    there.runner.mark_closed_emitted()
    there.runner.mark_closed_emitted()
    assert there.runner.closed_emitted is True
    assert there.runner.session.phase == "closed"
    await there.runner.close("again")
    await there.runner.expire("again")
    assert there.of(SessionClosed) == there.of(SessionExpired) == []
    there.runner.ending.send_claimed(SessionClosed(reason="bye"))
    there.runner.ending.send_claimed(SessionClosed(reason="bye"))
    there.runner.submit(Heartbeat())
    assert [type(event) for event in there.manager.events][-1] is SessionClosed
    assert len(there.of(SessionClosed)) == 1


class Scripted:
    """A session that says what it is told to."""

    def __init__(self, real: DuplexEngineSession, effects: list[Effect] | Exception) -> None:
        self._real = real
        self._effects = effects

    def step(self, item: object, now: float) -> list[Effect]:
        del item, now
        effects, self._effects = self._effects, []
        if isinstance(effects, Exception):
            raise effects
        return effects

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


@virtual
async def test_the_end_follows_every_effect_of_its_step(runtime: VirtualRuntime) -> None:
    there = desk(runtime)
    late = Emit(number=9, event=HeartbeatAcknowledged())
    there.runner.session = Scripted(there.runner.session, [CleanupSession(request_ids=()), late])  # type: ignore[assignment]
    there.runner.submit(Heartbeat())
    assert there.manager.steps[-3:] == ["HeartbeatAcknowledged", "slot free", "ended"]


@virtual
async def test_a_broken_session_still_stops_what_it_was_submitting(runtime: VirtualRuntime) -> None:
    there = desk(runtime)
    withdrawn = []

    async def stuck() -> None:
        try:
            await asyncio.sleep(3600.0)
        finally:
            await asyncio.sleep(0.005)
            withdrawn.append(len(there.port.cleaned))

    there.port.on_submit = stuck
    request_id = ask(there)
    await asyncio.sleep(0.1)
    there.runner.session = Scripted(there.runner.session, RuntimeError("broken"))  # type: ignore[assignment]
    there.runner.submit(Heartbeat())
    assert there.manager.ended == [("closed", "internal_error", ErrorCode.INTERNAL_ERROR)]
    assert there.of(ResponseDone)[0].status == "failed"
    there.runner.begin_close("closed", "internal_error", emit_terminal=False)
    assert there.manager.steps[-1] != "ended"
    await asyncio.sleep(0.1)
    assert ((request_id,), True) in there.port.cleaned[withdrawn[0] :]
    assert there.manager.steps[-2:] == ["slot free", "ended"]


@virtual
async def test_a_client_that_closes_leaves_the_rest_to_the_manager(runtime: VirtualRuntime) -> None:
    there = desk(runtime)
    there.runner.submit(CloseSession(reason="done"))
    assert there.manager.ended == [("closed", "done", None)]
    there.runner.submit(Heartbeat(event_id="e1"))
    assert there.of(ErrorRaised)[-1].code == ErrorCode.SESSION_CLOSED


@virtual
async def test_a_shutdown_ends_every_task_whatever_it_does(runtime: VirtualRuntime) -> None:
    there = desk(runtime)
    there.port.on_submit = lambda: asyncio.sleep(3600.0)
    ask(there)
    ended = []

    async def stubborn(name: str) -> None:
        try:
            await asyncio.sleep(3600.0)
        finally:
            ended.append(name)

    there.runner.spawn(stubborn("a"), name="a")
    there.runner.spawn(stubborn("b"), name="b")
    await asyncio.sleep(0.01)
    await there.runner.shutdown()
    await there.runner.shutdown()
    await asyncio.sleep(0)
    assert sorted(ended) == ["a", "b"]
    assert len(there.runner.tasks) == 0


@virtual
async def test_work_can_be_done_away_from_the_loop(runtime: VirtualRuntime) -> None:
    there = desk(runtime)
    assert await there.runner.offload(divmod, 7, 2) == (3, 1)
    assert await there.runner.offload(int, "ff", base=16) == 255


@virtual
async def test_an_internal_event_is_judged_once_at_entry(runtime: VirtualRuntime) -> None:
    there = desk(runtime)
    there.runner.emit({"type": "error", "code": "bad_event", "message": "No.", "event_id": "e1"})
    assert there.of(ErrorRaised)[0] == ErrorRaised(code=ErrorCode.BAD_EVENT, message="No.", event_id="e1")
    for wrong in ({"type": "nonsense"}, {"type": "error", "code": "no_code", "message": ""}, {}):
        with pytest.raises(ValueError, match="not an internal event"):
            there.runner.emit(wrong)
    there.runner.emit({"type": "response.failed", "message": "It broke.", "session_ends": True})
    assert there.manager.ended == [("expired", "request_cleanup", ErrorCode.RUNTIME_STREAM_FAILED)]


@virtual
async def test_a_stage_without_a_replica_fails_the_append_with_that_reason(runtime: VirtualRuntime) -> None:
    there = desk(runtime)
    there.port.live = False
    there.runner.submit(AppendAudio(audio=SECOND))
    there.runner.submit(CommitAudio(create_response=True))
    assert there.of(ErrorRaised)[0].code == ErrorCode.REPLICA_UNAVAILABLE
    assert "stage 1" in there.of(ErrorRaised)[0].message
    assert there.port.cleaned == []
    assert there.of(SessionUpdated)
