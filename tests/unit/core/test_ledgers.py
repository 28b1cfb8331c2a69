"""The small ledgers one by one: fences, the append tail, input audio, the lease, requests, the transition tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.config.session import ServerVad, SessionConfig
from duologue.engine.duplex.contracts import DuplexFence
from duologue.engine.duplex.core.audio import AudioLedger
from duologue.engine.duplex.core.effects import Detect, SubmitAppend
from duologue.engine.duplex.core.fences import Fences
from duologue.engine.duplex.core.invariants import InvariantViolation
from duologue.engine.duplex.core.lease import Lease
from duologue.engine.duplex.core.session import DuplexFenceMismatchError
from duologue.engine.duplex.core.tables import TABLES, advance
from duologue.engine.duplex.core.tail import AppendTail, PendingAppend
from tests.unit.core.harness import MANUAL, NATIVE, World, audio

# -- fences (invariant 8) ------------------------------------------------------------------------------------------------


@given(st.lists(st.one_of(st.just("epoch"), st.integers(-1, 6), st.just("commit")), max_size=60))
def test_epoch_and_turn_only_grow_and_numbers_have_no_gaps(steps: list[object]) -> None:
    fences = Fences("s")
    seen: list[int] = []
    for step in steps:
        before = (fences.epoch, fences.turn_id, fences.accepted)
        match step:
            case "epoch":
                fences.advance_epoch()
                assert (fences.epoch, fences.turn_id) == (before[0] + 1, before[1]) and fences.seq == 0
                seen = []
            case "commit":
                fences.commit(fences.current)
                seen.append(fences.seq)
            case int():
                fences.complete_turn(step)
                assert fences.epoch == before[0]
                assert fences.turn_id == (step + 1 if step >= before[1] else before[1])
                assert fences.turn_seq == 0 or fences.turn_id == before[1]
        assert fences.accepted >= before[2]
        assert seen == list(range(1, len(seen) + 1))
        assert fences.current == DuplexFence(session_id="s", epoch=fences.epoch, turn_id=fences.turn_id)


def test_acceptances_that_come_late_do_not_count_for_the_new_epoch() -> None:
    fences = Fences("s")
    old = fences.current
    fences.advance_epoch()
    fences.commit(old)
    assert (fences.seq, fences.turn_seq, fences.accepted) == (0, 0, (0, 1))


def test_acceptances_of_an_older_turn_count_for_the_epoch_only() -> None:
    fences = Fences("s")
    old = fences.current
    fences.complete_turn(1)
    fences.commit(old)
    assert (fences.seq, fences.turn_seq) == (1, 0)


def test_a_stage_binds_only_what_the_session_still_wants() -> None:
    world = World(MANUAL, capabilities=NATIVE)
    world.append(audio("." * 5))
    submit = world.submits[-1]
    world.core.bind_stage_request(1, submit.request_id, fence=submit.fence)
    assert world.state.requests.records[submit.request_id].stages == {1}
    other = DuplexFence(session_id="another", epoch=0, turn_id=1)
    older = DuplexFence(session_id=world.core.session_id, epoch=5, turn_id=1)
    for request_id, fence in (("unknown", submit.fence), (submit.request_id, other), (submit.request_id, older)):
        with pytest.raises(DuplexFenceMismatchError):
            world.core.bind_stage_request(1, request_id, fence=fence)


# -- the append tail (invariants 9 and 10) -------------------------------------------------------------------------------


def piece(name: str, size: int = 4) -> PendingAppend:
    return PendingAppend(
        request_id=name,
        fence=DuplexFence(session_id="s", epoch=0, turn_id=1),
        audio=b"\0" * size,
        final=False,
        respond=True,
    )


@given(st.lists(st.sampled_from(["a", "b", "next", "accept", "reject", "void", "void a", "orphan"]), max_size=80))
def test_every_append_ends_once_and_in_order(steps: list[str]) -> None:
    tail = AppendTail()
    enqueued: list[PendingAppend] = []
    submitted: list[PendingAppend] = []
    for step in steps:
        match step:
            case "a" | "b":
                enqueued.append(piece(step))
                tail.enqueue(enqueued[-1])
            case "next":
                blocked = tail.blocked
                append = tail.next()
                assert append is None or not blocked, "two in flight"
                if append is not None:
                    submitted.append(append)
            case "void":
                tail.void()
                assert not tail.queue and tail.in_flight is None
            case "void a":
                tail.void("a")
                assert all(append.request_id == "b" for append in tail.queue)
            case _:
                settle(tail, step)
        check_tail(tail, enqueued, submitted)


def settle(tail: AppendTail, step: str) -> None:
    if step == "orphan":
        for number in list(tail.orphans):
            orphan = tail.orphan(number, accepted=bool(number % 2))
            assert orphan is not None and orphan.request_id in ("a", "b")
        assert tail.orphan(10_000, accepted=True) is None
        return
    if tail.in_flight is not None:
        assert tail.settle(tail.in_flight.number, accepted=step == "accept") is not None
    assert tail.settle(10_000, accepted=True) is None


def check_tail(tail: AppendTail, enqueued: list[PendingAppend], submitted: list[PendingAppend]) -> None:
    states = [append.state for append in enqueued]
    assert states.count("queued") == len(tail.queue)
    assert states.count("in_flight") == (tail.in_flight is not None)
    assert states.count("accepted") == tail.accepted and states.count("failed") == tail.failed
    assert states.count("void") + states.count("orphan") == tail.voided
    assert tail.held_bytes == 4 * (states.count("queued") + states.count("in_flight"))
    assert [append.number for append in submitted] == list(range(1, len(submitted) + 1))
    order = [id(append) for append in enqueued]
    positions = [order.index(id(append)) for append in submitted]
    assert positions == sorted(positions)


def test_nothing_is_submitted_while_the_fate_of_a_voided_one_is_unknown() -> None:
    tail = AppendTail()
    tail.enqueue(piece("a"))
    first = tail.next()
    assert first is not None
    assert tail.void() == 4
    tail.enqueue(piece("b"))
    assert tail.next() is None and tail.blocked and not tail.idle
    assert tail.settle(first.number, accepted=True) is None
    assert tail.orphan(first.number, accepted=True) is first and first.state == "void" and not first.audio
    assert tail.next() is not None


# -- input audio (invariant 7) -------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.sampled_from(["append", "consume", "discard", "copy"]), st.integers(-3, 60), st.integers(0, 60)),
        max_size=60,
    )
)
def test_bytes_add_up_and_positions_never_move_back(steps: list[tuple[str, int, int]]) -> None:
    ledger = AudioLedger(16_000)
    everything = b""
    for step, first, second in steps:
        floor = ledger.floor
        match step:
            case "append":
                pcm = bytes((len(everything) + i) % 251 for i in range(2 * second))
                everything += pcm
                ledger.append(pcm)
            case "consume":
                ledger.consume_to(first)
            case "discard":
                ledger.discard_to(first)
            case "copy":
                start = min(ledger.end, ledger.floor + max(0, first))
                stop = min(ledger.end, start + second)
                assert ledger.copy(start, stop) == everything[2 * start : 2 * stop]
        assert ledger.floor == max(floor, min(first, ledger.end)) or step in ("append", "copy")
        assert ledger.received_bytes == ledger.consumed_bytes + ledger.discarded_bytes + ledger.buffered_bytes
        assert sum(len(pcm) for _, pcm in ledger.chunks) == ledger.buffered_bytes
    assert ledger.copy(ledger.floor, ledger.end) == everything[2 * ledger.floor :]


def test_times_lie_on_one_clock() -> None:
    ledger = AudioLedger(24_000)
    ledger.append(bytes(48_000))
    ledger.consume_to(12_000)
    assert (ledger.ms(ledger.floor), ledger.ms(ledger.end), ledger.samples(100)) == (500, 1_000, 2_400)


# -- the lease (invariants 12 and 13) ------------------------------------------------------------------------------------


def test_two_racing_resumes_have_one_winner_and_a_loser_detaches_nobody() -> None:
    lease = Lease(0.0)
    lease.detach(1.0, None)
    assert lease.resume(2.0, "a", 0) and lease.generation == 1
    assert not lease.resume(2.0, "b", 0)
    assert lease.resume(2.1, "a", 0) and lease.generation == 1, "replay is idempotent"
    assert not lease.detach(3.0, 0) and lease.attached
    assert lease.detach(3.0, 1) and not lease.attached


def test_resuming_takes_a_session_over_from_a_connection_that_is_still_there() -> None:
    lease = Lease(0.0)
    assert lease.resume(1.0, "a", 0) and lease.attached and lease.generation == 1


@given(
    st.lists(
        st.tuples(st.sampled_from(["detach", "attach", "resume", "replay", "touch", "end"]), st.integers(-1, 3)),
        max_size=40,
    )
)
def test_generations_grow_by_one_per_distinct_resume(steps: list[tuple[str, int]]) -> None:
    lease, now, last = Lease(0.0), 0.0, ""
    for step, number in steps:
        now += 1.0
        before, state = lease.generation, lease.state
        match step:
            case "detach":
                done = lease.detach(now, number if number >= 0 else None)
                assert done == (state == "attached" and number in (-1, before))
            case "attach":
                lease.attach(now)
            case "resume":
                last = f"c{now}"
                done = lease.resume(now, last, number)
                assert done == (state != "terminal" and number == before)
                assert lease.generation == before + done
            case "replay":
                done = lease.resume(now, lease.resumed_by or "never", before - 1)
                assert done == (lease.resumed_by is not None and state != "terminal")
                assert lease.generation == before
            case "touch":
                lease.touch(now)
            case "end":
                lease.end()
                assert lease.generation == before + (state != "terminal")
        assert (lease.detached_at is not None) == (lease.state == "grace")
        if state == "terminal":
            assert lease.state == "terminal" and lease.generation == before


@pytest.mark.parametrize(
    ("at", "expected"), [(29.99, None), (30.0, "disconnect_grace_expired"), (30.01, "disconnect_grace_expired")]
)
def test_grace_ends_when_it_is_due(at: float, expected: str | None) -> None:
    lease = Lease(0.0)
    lease.detach(0.0, None)
    assert lease.expiry(at, idle_ttl_s=None, grace_s=30.0, busy=True) == expected


@pytest.mark.parametrize(
    ("at", "busy", "ttl", "expected"),
    [
        (99.99, False, 100.0, None),
        (100.0, False, 100.0, "idle_ttl_expired"),
        (100.0, True, 100.0, None),
        (1e9, False, None, None),
    ],
)
def test_idle_ends_when_it_is_due_and_never_while_something_is_done(
    at: float, busy: bool, ttl: float | None, expected: str | None
) -> None:
    assert Lease(0.0).expiry(at, idle_ttl_s=ttl, grace_s=30.0, busy=busy) == expected


def test_grace_comes_before_idle_and_a_lease_that_ended_expires_no_more() -> None:
    lease = Lease(0.0)
    lease.detach(0.0, None)
    assert lease.expiry(1e6, idle_ttl_s=1.0, grace_s=1.0, busy=False) == "disconnect_grace_expired"
    lease.end()
    assert lease.expiry(1e6, idle_ttl_s=1.0, grace_s=1.0, busy=False) is None


# -- tables --------------------------------------------------------------------------------------------------------------


@given(st.sampled_from(sorted(TABLES)), st.text(max_size=5), st.text(max_size=5))
def test_a_transition_that_no_table_has_is_a_broken_invariant(name: str, state: str, event: str) -> None:
    table = TABLES[name]
    if (state, event) not in table:
        with pytest.raises(InvariantViolation):
            advance(table, state, event)


@pytest.mark.parametrize("name", sorted(TABLES))
def test_every_state_but_the_first_can_be_reached_and_ends_are_ends(name: str) -> None:
    table = TABLES[name]
    first = next(iter(table))[0]
    reached = {first}
    while True:
        following = {after for (state, _), after in table.items() if state in reached} | reached
        if following == reached:
            break
        reached = following
    assert reached == {state for state, _ in table} | set(table.values())


@pytest.mark.parametrize("taken", [True, False])
def test_within_an_epoch_no_number_is_given_twice(taken: bool) -> None:
    """A submission that was withdrawn on its way counts if the stage took it all the same (invariant 8)."""
    world = World(SessionConfig(turn_detection=ServerVad(create_response=False)), auto=False)
    world.say("S" * 30)
    world.answer_all(Detect)
    first = world.take(SubmitAppend)
    assert isinstance(first, SubmitAppend) and first.seq == 1
    world.say("." * 20)
    world.answer_all(Detect)  # the turn is over, and no answer to it is wanted
    assert first.request_id in world.aborted and world.core.epoch == 0
    world.answer(first, ok=taken)
    second = world.take(SubmitAppend)
    assert isinstance(second, SubmitAppend) and second.request_id != first.request_id
    assert second.seq == (2 if taken else 1)
