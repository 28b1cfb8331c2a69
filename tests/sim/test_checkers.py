"""Rules with an exception: the exception is none of a violation, and beside it the rule still bites.

Each takes what was seen of a healthy run and adds to it what the exception is about, or what it must not cover.
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from duologue.config.session import SessionPatch
from duologue.engine.duplex import events
from duologue.engine.duplex.commands import CreateResponse, DuplexCommand, Heartbeat, UpdateSession
from duologue.engine.duplex.messages import OutputInvalidated
from duologue.errors import ErrorCode
from duologue.outputs import RequestOutput
from duologue.server.transport import SocketLostError
from duologue.sim.checkers import judge
from duologue.sim.conversation import Conversation, Heard
from duologue.sim.loop import VirtualRuntime, virtual
from duologue.sim.mutation import applied
from duologue.sim.mutations import MUTATIONS, Edit, Mutation
from duologue.sim.network import Pipe
from duologue.sim.observation import Admission, Observations
from duologue.sim.outcome import evidence_of, live
from duologue.sim.plan import (
    Choices,
    Death,
    Deployment,
    Link,
    Lose,
    Order,
    Person,
    Plan,
    ReplicaFault,
    Rest,
    Resume,
    Return,
    Say,
    Step,
    Until,
)
from duologue.sim.replica import ReplicaFaults, SimReplica
from duologue.sim.stages import StageDesk
from duologue.sim.trace import Trace
from duologue.sim.world import World
from duologue.wire import server_events as wire
from duologue.wire.objects import ErrorBody
from tests.sim.scenes import BEATING, CALM, PATIENT, RESIDENT, RESUMED, TALK, find, plan, seen, told


def lived(scene: Plan = TALK) -> World:
    world, violations = live(scene)
    assert world is not None and not violations
    return world


def broken(world: World) -> list[str]:
    return sorted({found.rule for found in judge(evidence_of(world))})


# What a stage made twice


def _make_the_end_twice(world: World) -> None:
    made = seen(world).output
    made.append([entry for entry in made if entry.stage == 2 and entry.output.finished][-1])


def test_an_answer_is_whole_although_its_stage_said_the_end_twice() -> None:
    world = lived()
    _make_the_end_twice(world)
    assert broken(world) == []


def test_what_a_stage_says_twice_is_not_heard_twice() -> None:
    world = lived()
    _make_the_end_twice(world)
    last = find(world, events.ResponseAudio, -1)
    told(world).insert(last, told(world)[last])
    assert "D2" in broken(world)


def test_an_answer_that_lost_its_end_is_noticed_although_its_stage_said_that_twice() -> None:
    world = lived()
    _make_the_end_twice(world)
    del told(world)[find(world, events.ResponseAudio, -1)]
    assert "D4" in broken(world)


@virtual
async def test_a_replica_that_says_the_end_twice_says_it_behind_what_is_on_its_way(runtime: VirtualRuntime) -> None:
    assert await _doubled(runtime, transit_ms=5) == ["one", "two", "two"]
    assert await _doubled(runtime, transit_ms=0) == ["one", "two", "two"]


async def _doubled(runtime: VirtualRuntime, transit_ms: int) -> list[str]:
    heard: list[str] = []

    class Sink:
        def on_output(self, output: RequestOutput) -> None:
            heard.append(output.text)

        def on_dead(self, error: BaseException) -> None:
            raise error

    deployment = Deployment(transit_ms=transit_ms)
    observed = Observations(Trace(runtime.now), prefix="d0.s")
    faults = ReplicaFaults((ReplicaFault(stage=2, operation="output", nth=2, how="double"),))
    replica = SimReplica(2, StageDesk(1, deployment, observed, {}), faults, runtime, observed)
    await replica.start(Sink())
    replica.on_output(RequestOutput(request_id="r", text="one"))
    replica.on_output(RequestOutput(request_id="r", text="two", finished=True))
    await asyncio.sleep(0.1)
    await replica.close()
    return heard


# What a connection delivers late


def _talk(world: World) -> Conversation:
    return world.talkers[0].conversations[0]


def _terminal(talk: Conversation) -> Heard:
    return next(entry for entry in talk.heard if isinstance(entry.event, wire.SessionClosed))


def _late(talk: Conversation, connection: int, behind: int) -> Heard:
    """Audio that a connection delivers after the terminal, numbered ``behind`` more than that."""
    end, sound = _terminal(talk), next(entry for entry in talk.heard if isinstance(entry.event, wire.AudioDelta))
    assert end.event is not None and isinstance(end.event.server_event_seq, int) and sound.event is not None
    seq = end.event.server_event_seq + behind
    return Heard(end.at + 0.1, connection, msgspec.structs.replace(sound.event, server_event_seq=seq))


def test_a_connection_that_was_taken_over_may_deliver_what_it_was_given_after_the_terminal() -> None:
    world = lived(RESUMED)
    talk = _talk(world)
    assert _terminal(talk).connection == 2
    # Its successor was given it, too: nobody knows what the old one had still got.
    first = next(entry for entry in talk.heard if isinstance(entry.event, wire.AudioDelta) and entry.connection == 2)
    talk.heard.append(msgspec.structs.replace(first, at=_terminal(talk).at + 0.1, connection=1))
    assert broken(world) == []


def test_nothing_follows_the_terminal_on_its_connection() -> None:
    world = lived(RESUMED)
    talk = _talk(world)
    talk.heard.append(_late(talk, _terminal(talk).connection, behind=-1))
    assert "B4" in broken(world)


def test_nothing_is_said_behind_the_terminal_on_another_connection() -> None:
    world = lived(RESUMED)
    talk = _talk(world)
    talk.heard.append(_late(talk, connection=1, behind=1))
    assert "B4" in broken(world)


# What was handed over before it was withdrawn


def _hand_over(world: World, response_id: str, seq: int) -> None:
    frame = f'{{"type":"response.output_audio.delta","server_event_seq":{seq},"response_id":"{response_id}"}}'
    world.sites[0].handed_over(frame.encode())


def test_what_was_handed_over_may_be_replayed_after_it_was_withdrawn_and_nothing_else() -> None:
    world = lived()
    session_id = next(iter(seen(world).told))
    response_id = f"resp-{session_id}-0-0123abcd"
    _hand_over(world, response_id, 901)
    world.sites[0].border.left(OutputInvalidated(session_id=session_id, response_id=response_id))
    _hand_over(world, response_id, 901)
    assert "D7" not in broken(world)
    _hand_over(world, response_id, 902)
    assert "D7" in broken(world)


@virtual
async def test_what_a_lost_connection_is_given_counts_as_handed_over(runtime: VirtualRuntime) -> None:
    """It has got its number: the next connection is given it again."""
    pipe, handed = Pipe(runtime, Link(), lambda: 0.0, "p"), list[bytes]()
    pipe.server.on_send = handed.append
    pipe.reset()
    with pytest.raises(SocketLostError):
        await pipe.server.send(b"one")
    assert handed == [b"one"]


# What a slow stage has not read yet

ASKING = plan(
    *(Say(quiet_ms=250), Rest(ms=2_500)) * 3,
    deployment=msgspec.structs.replace(RESIDENT, tools=True, runtime={"max_sessions": 2, "tool_result_timeout_s": 3.0}),
    choices=Choices(tools="once"),
)


def _told_of_a_result(world: World) -> list[int]:
    """Which of the pieces that the resident model's stage read tell it what became of a call."""
    fed = seen(world).input
    return [at for at, piece in enumerate(fed) if any(message.call_id for message in piece.prompt.messages)]


def test_a_result_may_wait_behind_all_that_its_stage_has_not_read_yet() -> None:
    world = lived(ASKING)
    fed = seen(world).input
    first = _told_of_a_result(world)[0]
    assert len(fed) - first > 10
    del fed[first:]
    assert "B16" not in broken(world)


def test_a_stage_that_has_read_what_came_after_a_result_was_told_of_it() -> None:
    world = lived(ASKING)
    fed = seen(world).input
    first = _told_of_a_result(world)[0]
    fed[first] = msgspec.structs.replace(fed[first], prompt=msgspec.structs.replace(fed[first].prompt, messages=()))
    del fed[first + 10 :]
    assert "B16" in broken(world)


# What a connection may refuse


def _read_and_not_passed_on(talk: Conversation, *places: int) -> None:
    """The server read more audio than the session was sent, at each of the places; the one of latest place first."""
    for place in places:
        at = [n for n, entry in enumerate(talk.read) if entry.audio][place]
        talk.read.insert(at, msgspec.structs.replace(talk.read[at], audio=b"\1\2" * 500))


def _refused(talk: Conversation) -> None:
    error = wire.Error(error=ErrorBody(type="invalid_request_error", message="Full.", code="input_backpressure"))
    talk.heard.insert(1, msgspec.structs.replace(talk.heard[0], event=error))


def test_whoever_waits_for_a_slot_may_lose_one_stretch_of_what_it_says() -> None:
    world = lived()
    _read_and_not_passed_on(_talk(world), 10)
    _refused(_talk(world))
    assert broken(world) == []


@pytest.mark.parametrize(("places", "told"), [((10,), False), ((20, 10), True)])
def test_what_is_lost_without_a_word_or_in_two_stretches_is_noticed(places: tuple[int, ...], told: bool) -> None:
    world = lived()
    _read_and_not_passed_on(_talk(world), *places)
    if told:
        _refused(_talk(world))
    assert broken(world) == ["B9"]


@pytest.mark.parametrize(("early", "fine"), [(300, True), (500, True), (600, False), (2_000, False)])
def test_a_turn_begins_in_a_frame_that_is_mostly_silence_or_where_speech_does(early: int, fine: bool) -> None:
    """What ends in mid-frame ended before that frame, to the detector: its last samples may belong to the next turn."""
    world = lived()
    fed = seen(world).input
    first, second = (at for at, piece in enumerate(fed) if piece.stage == 0)
    before, after = fed[first].prompt, fed[second].prompt
    spoken = max(at for at in range(0, len(before.audio), 2) if before.audio[at + 1] not in (0, 255)) + 2
    stream = b"".join(entry.audio for entry in _talk(world).read)
    begins, ends = stream.find(before.audio) + spoken - 2 * early, stream.find(after.audio) + len(after.audio)
    whole = msgspec.structs.replace(after, audio=stream[begins:ends])
    fed[second] = msgspec.structs.replace(fed[second], prompt=whole)
    said = [found.text for found in judge(evidence_of(world)) if found.rule == "B9"]
    assert any("into speech" in text for text in said) is not fine, said


# What a client may ask for

HASTY = plan(
    *(Say(loud_ms=300), Order(name="commit", pick=1), Rest(ms=3_500)) * 3,
    deployment=msgspec.structs.replace(CALM, runtime={"max_sessions": 2, "turn_burst": 1, "turns_per_minute": 6}),
    choices=Choices(detection=None),
)


def _ask(world: World, *commands: tuple[float, DuplexCommand]) -> None:
    """The client sent these alone: so many seconds after the first turn was committed, which answers an update, too."""
    said = told(world)
    first = said[find(world, events.InputCommitted)].at
    said[-1] = msgspec.structs.replace(said[-1], at=first + 60.0)
    session_id = next(iter(seen(world).told))
    seen(world).commands[session_id] = [(first + after_s, command) for after_s, command in commands]


@pytest.mark.parametrize(
    ("held", "after_s", "bites"),
    [
        (False, (0.1, 0.1), True),  # nothing was to be waited for
        (False, (0.1, 10.2), False),  # as often as the rate allows
        (True, (-0.1, -0.1), False),  # the update has no answer yet: they are asked behind it, or never
        (True, (0.1, 0.1), True),  # it has one
        (True, (-0.1, 0.1), False),  # one of each
    ],
)
def test_what_was_held_back_was_not_asked_at_once_and_what_was_not_is_counted(
    held: bool, after_s: tuple[float, float], bites: bool
) -> None:
    world = lived(HASTY)
    update = ((-0.2, UpdateSession(patch=SessionPatch())),) if held else ()
    _ask(world, *update, *((at, CreateResponse()) for at in after_s))
    assert ("R1" in broken(world)) is bites


@pytest.mark.parametrize("name", ["rate not limited", "allowance refills too fast"])
def test_a_client_that_may_ask_too_often_is_noticed(name: str) -> None:
    assert broken(lived(HASTY)) == []
    with applied(next(mutation for mutation in MUTATIONS if mutation.name == name)):
        assert broken(lived(HASTY)) == ["R1"]


# What a client may ask for again


def _numbers(talk: Conversation, connection: int) -> list[int]:
    numbers = (entry.event.server_event_seq for entry in talk.heard if entry.event and entry.connection == connection)
    return [number for number in numbers if isinstance(number, int)]


def _asked_again(how: Return, *, between: tuple[Step, ...] = ()) -> Plan:
    voice = (Say(), Until(moment="audio"), *between, Resume(how=how), Until(moment="done"))
    ann = msgspec.structs.replace(TALK.people[0], voice=voice, ack_events=4, link=Link(delay_ms=40))
    return msgspec.structs.replace(TALK, people=(ann,))


def test_what_was_not_acknowledged_is_given_again_and_a_journal_that_forgets_it_is_noticed() -> None:
    scene = _asked_again("acked", between=(Rest(ms=350), Lose(how="reset")))
    talk = _talk(lived(scene))
    first, second = ({seq for seq in _numbers(talk, attempt.number)} for attempt in talk.attempts)
    asked = talk.attempts[-1].asked
    assert 0 < asked == max(first) // 4 * 4 < max(first), "the rhythm of this client leaves some events unacknowledged"
    assert first & second == set(range(asked + 1, max(first) + 1))
    with applied(next(mutation for mutation in MUTATIONS if mutation.name == "journal trimmed too far")):
        assert "B14" in broken(lived(scene))


@pytest.mark.parametrize("acked", [True, False])
def test_who_takes_over_is_sent_back_only_if_it_acknowledged_more_than_it_asked_for(acked: bool) -> None:
    world = lived(_asked_again("takeover"))
    talk = _talk(world)
    attempt = talk.attempts[-1]
    index = next(n for n, entry in enumerate(talk.heard) if isinstance(entry.event, wire.SessionResumed))
    entry = talk.heard[index]
    gap = wire.ResyncRequired(
        reason="journal_gap", last_received_server_event_seq=attempt.asked, next_server_event_seq=attempt.asked + 1
    )
    talk.heard.insert(index + 1, msgspec.structs.replace(entry, event=gap))
    talk.acks[:] = [(entry.at, attempt.asked + acked)]
    texts = [found.text for found in judge(evidence_of(world))]
    assert any("sent back although nothing was lost" in text for text in texts) is not acked


# What comes next


def _mutated(name: str, scene: Plan) -> list[str]:
    with applied(next(mutation for mutation in MUTATIONS if mutation.name == name)):
        return broken(lived(scene))


def _forget_the_next_answer(world: World) -> int:
    """Nothing is left of the answer to the turn that waited; returns where the answer before it ended."""
    entries, second = told(world), find(world, events.ResponseCreated, 1)
    created = entries[second].event
    assert isinstance(created, events.ResponseCreated)
    entries[:] = [entry for entry in entries if getattr(entry.event, "response_id", None) != created.response_id]
    return find(world, events.ResponseDone)


@pytest.mark.parametrize(
    ("status", "deleted", "bites"),
    [("completed", False, True), ("incomplete", False, True), ("cancelled", False, False), ("completed", True, False)],
)
def test_a_turn_that_waited_is_answered_next_unless_it_is_wanted_no_more(
    status: events.ResponseStatus, deleted: bool, bites: bool
) -> None:
    world = lived(PATIENT)
    entries, done = told(world), _forget_the_next_answer(world)
    entry = entries[done]
    entries[done] = msgspec.structs.replace(entry, event=msgspec.structs.replace(entry.event, status=status))
    if deleted:
        committed = next(e for e in entries if isinstance(e.event, events.InputCommitted) and e.event.deferred)
        assert isinstance(committed.event, events.InputCommitted)
        gone = events.ItemDeleted(item_id=committed.event.item.item_id)
        entries.insert(done, msgspec.structs.replace(entries[done], event=gone))
    assert ("L3" in broken(world)) is bites


def test_a_forgotten_answer_is_noticed() -> None:
    assert "L3" in _mutated("wanted answer forgotten", PATIENT)


LOST = msgspec.structs.replace(plan(Say(), Until(moment="done"), Rest(ms=5_000)), deaths=(Death(stage=2, at_ms=1_500),))


def test_a_session_that_nobody_places_again_is_noticed() -> None:
    assert broken(lived(LOST)) == []
    assert _mutated("nobody looks for another replica", LOST) == ["D9"]


@pytest.mark.parametrize("busy", [True, False])
def test_what_was_asked_at_the_moment_of_a_loss_may_have_come_first(busy: bool) -> None:
    world = lived(LOST)
    del told(world)[find(world, events.SessionRecovered)]
    if busy:
        next(iter(seen(world).commands.values())).append((seen(world).deaths[0][0], Heartbeat()))
    assert ("D9" in broken(world)) is not busy


@pytest.mark.parametrize(
    ("queued", "until", "fine"), [(True, 1.0, True), (True, None, True), (True, 0.9, False), (False, 1.0, False)]
)
def test_a_free_slot_is_for_who_waits_and_nobody_else_is_refused_for_it(
    queued: bool, until: float | None, fine: bool
) -> None:
    world = lived()
    first = Admission(at=0.5, session_id="first", held=0, number=7, queued=queued, answered=until)
    later = Admission(at=1.0, session_id="later", held=1, number=8, refused="resource_exhausted", answered=1.0)
    seen(world).admissions += [first, later]
    assert ("B5" in broken(world)) is not fine


SLOW_WAY = Plan(
    seed=1,
    deployments=(Deployment(family="resident", unit_ms=0, lag_ms=500),),
    people=(Person(name="ann", voice=(Say(chunk_bytes=641),), choices=Choices(auto_response=True), leave="stay"),),
)


def test_what_a_resident_model_is_still_at_work_on_when_idleness_is_judged_is_judged_later() -> None:
    assert broken(lived(SLOW_WAY)) == []
    gate = "if not self.queue or self.blocked"
    stuck = Edit("duologue.engine.duplex.core.tail:AppendTail.next", f"{gate}:", f"{gate} or self.accepted == 50:")
    with applied(Mutation("a queue that stops", "what waits is submitted", (stuck,))):
        world = lived(SLOW_WAY)
    (text,) = (found.text for found in judge(evidence_of(world)) if found.rule == "B20")
    assert not text.startswith("18 s"), "it was still at work then"


@pytest.mark.parametrize("late", ["", "in the queue", "overflown"])
def test_a_command_without_an_answer_is_noticed_unless_its_session_ended_as_it_came(late: str) -> None:
    """At the end of an opening that took long, or by the very answer, for which there was no room."""
    world = lived(BEATING)
    talk, entries = _talk(world), told(world)
    talk.heard[:] = [entry for entry in talk.heard if not isinstance(entry.event, wire.HeartbeatAck)]
    (asked,) = (read.at for read in talk.read if read.kind == "Heartbeat")
    if late == "in the queue":
        entries[:] = [msgspec.structs.replace(entry, at=entries[-1].at) for entry in entries]
    elif late:
        place = next(index for index, entry in enumerate(entries) if entry.at >= asked)
        fault = events.ErrorRaised(code=ErrorCode.OUTPUT_BACKPRESSURE, message="full")
        entries.insert(place, msgspec.structs.replace(entries[place], at=asked, event=fault))
    assert ("B20" in broken(world)) is not bool(late)


@pytest.mark.parametrize("refused", [False, True])
def test_what_goes_under_later_settings_is_noticed_unless_it_was_refused_before(refused: bool) -> None:
    """A replica that does not live refuses before the plugin hears of anything; that is fed again under what is in force."""
    steps: tuple[Step, ...] = (
        Say(quiet_ms=0),
        Rest(ms=500),
        Order(name="update", pick=7),
        Rest(ms=100),
        Say(quiet_ms=0),
    )
    world = lived(plan(*steps, deployment=RESIDENT, choices=Choices(auto_response=True)))
    planned = seen(world).planned
    assert len({piece.instructions for piece in planned}) == 2
    first = next(index for index, piece in enumerate(planned) if piece.audio and not piece.accepted)
    planned[first] = msgspec.structs.replace(planned[first], instructions=planned[-1].instructions)
    if refused:
        entries = told(world)
        place = next(index for index, entry in enumerate(entries) if entry.at >= planned[first].at)
        fault = events.ErrorRaised(code=ErrorCode.REPLICA_UNAVAILABLE, message="none lives")
        entries.insert(place, msgspec.structs.replace(entries[place], at=planned[first].at, event=fault))
    assert ("B9" in broken(world)) is not refused
