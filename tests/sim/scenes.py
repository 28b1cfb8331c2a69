"""Small runs of the simulator, and what makes each invariant's checker fire in one of them.

A proof switches a safeguard of the real engine off (by the name of its mutation), or takes a healthy run and changes one
thing that was seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from duologue.engine.duplex import events
from duologue.errors import ErrorCode
from duologue.sim.observation import Observations, Told
from duologue.sim.plan import Choices, Deployment, Errand, Lose, Order, Person, Plan, Rest, Resume, Say, Step, Until
from duologue.sim.strike import Strike
from duologue.sim.strike_plan import plan_of
from duologue.sim.world import World

EventT = TypeVar("EventT", bound=events.SessionEvent)

PLAIN: Final = Choices()
DONE: Final = Until(moment="done")
CALM: Final = Deployment(sentences=(2, 2), sentence_ms=(600, 800), runtime={"max_sessions": 2})
RESIDENT: Final = Deployment(family="resident", runtime={"max_sessions": 2}, silence_units=8)


def plan(*voice: Step, hands: tuple[Step, ...] = (), deployment: Deployment = CALM, choices: Choices = PLAIN) -> Plan:
    """One client alone with a deployment."""
    ann = Person(name="ann", voice=voice, hands=hands, choices=choices)
    return Plan(seed=1, deployments=(deployment,), people=(ann,))


TALK: Final = plan(Say(), DONE, Say(), DONE)
INTERRUPTED: Final = plan(
    *(Say(), Until(moment="audio"), Rest(ms=300), Say(), DONE, Say(), DONE),
    deployment=msgspec.structs.replace(
        CALM, sentences=(3, 3), sentence_ms=(1_500, 1_500), runtime={"max_sessions": 2, "send_ahead_ms": 200}
    ),
)
LISTENING: Final = plan(*(Say(quiet_ms=250), Rest(ms=2_500)) * 3, deployment=RESIDENT)
RESUMED: Final = plan(Say(), Until(moment="audio"), Lose(how="reset"), Rest(ms=300), Resume(), DONE, Say(), DONE)
FORGED: Final = plan(Say(), DONE, Lose(how="close"), Rest(ms=100), Resume(how="wrong_token"), Rest(ms=500))
REFUSED: Final = plan(Order(name="bad_update"), Say(), DONE)
BEATING: Final = plan(Say(), DONE, Order(name="heartbeat"), Rest(ms=500))
TOOLS: Final = plan(
    *(Say(), DONE) * 4,
    deployment=msgspec.structs.replace(CALM, tools=True, runtime={"tool_result_timeout_s": 3.0}),
    choices=Choices(tools="once"),
)
CROWD: Final = Plan(
    seed=1,
    deployments=(msgspec.structs.replace(CALM, runtime={"max_sessions": 1}),),
    people=tuple(Person(name=name, arrives_ms=100, voice=(Say(), DONE)) for name in ("ann", "bob")),
)
ASLEEP: Final = Plan(
    seed=1,
    deployments=(msgspec.structs.replace(CALM, runtime={"idle_ttl_s": 20.0}),),
    people=(Person(name="ann", voice=(Say(), DONE), leave="stay"),),
)
ERRANDS: Final = msgspec.structs.replace(TALK, errands=(Errand(name="paper", at_ms=300),))
TWINS: Final = Plan(
    seed=1,
    deployments=(CALM,),
    people=tuple(Person(name=name, voice=(Say(), DONE, Say(), DONE)) for name in ("ann", "bob")),
    witness="ann",
)


PATIENT: Final = Plan(
    seed=1,
    deployments=(msgspec.structs.replace(CALM, sentences=(3, 3), sentence_ms=(1_500, 1_500)),),
    people=(
        Person(
            name="ann",
            voice=(Say(), Until(moment="audio"), Say(), DONE, DONE),
            choices=Choices(interrupt=False),  # the second question is answered after the first answer
            leave="stay",
        ),
    ),
)


BARGE_INS: Final = tuple(Strike(at=at, what="barge_in") for at in range(20, 100, 10))


@dataclass(frozen=True, slots=True)
class Proof:
    """In ``scene`` the checker fires once ``off`` is switched off, or ``tamper`` has changed what was seen of it.

    ``strikes``: what strikes meanwhile, each in a run of its own: the checker fires in one of them.
    """

    scene: Plan
    off: str = ""
    strikes: tuple[Strike, ...] = ()
    tamper: Callable[[World], None] | None = None


def seen(world: World) -> Observations:
    """What was seen of the first deployment."""
    return world.sites[0].seen


def told(world: World) -> list[Told]:
    """What its first session said."""
    return next(iter(seen(world).told.values()))


def find(world: World, kind: type[EventT], nth: int = 0) -> int:
    """Where the nth event of a kind stands."""
    return [index for index, entry in enumerate(told(world)) if isinstance(entry.event, kind)][nth]


def _lose_the_end(world: World) -> None:
    del told(world)[find(world, events.ResponseDone)]


def _speak_after_the_end(world: World) -> None:
    said = told(world)
    end, sound = find(world, events.ResponseDone), find(world, events.ResponseAudio)
    said[end], said[sound] = (replace(said[end], event=said[sound].event), replace(said[sound], event=said[end].event))


def _speak_of_an_old_epoch(world: World) -> None:
    said, last = told(world), find(world, events.ResponseCreated, -1)
    event = said[last].event
    assert isinstance(event, events.ResponseCreated)
    said[last] = replace(said[last], event=msgspec.structs.replace(event, epoch=0))


def _end_twice(world: World) -> None:
    said = told(world)
    said.append(replace(said[-1], number=said[-1].number + 1))


def _overhear_a_turn(world: World) -> None:
    first = seen(world).input[0].request_id
    seen(world).input[:] = [fed for fed in seen(world).input if fed.request_id != first]


def _call_twice(world: World) -> None:
    said, at = told(world), find(world, events.FunctionCalled)
    said.insert(at, said[at])


def _jump_back(world: World) -> None:
    said = told(world)
    one, other = find(world, events.ResponseAudio), find(world, events.ResponseAudio, 1)
    said[one], said[other] = (replace(said[one], event=said[other].event), replace(said[other], event=said[one].event))


def _speak_after_an_overflow(world: World) -> None:
    event = events.ErrorRaised(code=ErrorCode.OUTPUT_BACKPRESSURE, message="9 events wait to be read.")
    at = find(world, events.ResponseAudio)
    told(world).insert(at, replace(told(world)[at], event=event))


def _forget_a_heartbeat(world: World) -> None:
    talk = world.talkers[0].conversations[0]
    talk.heard[:] = [heard for heard in talk.heard if type(heard.event).__name__ != "HeartbeatAck"]


def _end_an_errand_twice(world: World) -> None:
    said = seen(world).errands["paper"]
    said.append(said[-1])


def _answer_twice(world: World) -> None:
    answers = seen(world).answers
    answers[next(iter(answers))] += 1


PROOFS: Final[dict[int, Proof]] = {
    1: Proof(TALK, tamper=_lose_the_end),
    2: Proof(TALK, tamper=_speak_after_the_end),
    3: Proof(INTERRUPTED, tamper=_speak_of_an_old_epoch),
    4: Proof(TALK, tamper=_end_twice),
    5: Proof(TALK, off="terminal before the slot is free"),
    6: Proof(CROWD, off="one slot too many"),
    7: Proof(PATIENT, off="wanted answer forgotten"),
    8: Proof(INTERRUPTED, off="sequence not restarted"),
    9: Proof(TALK, off="prefix off by a sample"),
    10: Proof(TALK, tamper=_overhear_a_turn),
    11: Proof(TALK, off="running count not lowered"),
    12: Proof(TALK, tamper=_answer_twice),
    13: Proof(ASLEEP, off="idle too short"),
    14: Proof(RESUMED, off="replay repeats the last frame"),
    15: Proof(FORGED, off="any token resumes"),
    16: Proof(TOOLS, tamper=_call_twice),
    17: Proof(LISTENING, off="silence too often"),
    18: Proof(INTERRUPTED, off="unheard text told to the model"),
    19: Proof(TALK, tamper=_jump_back),
    20: Proof(BEATING, tamper=_forget_a_heartbeat),
    21: Proof(TALK, tamper=_speak_after_an_overflow),
    22: Proof(REFUSED, off="refused settings adopted"),
    24: Proof(ERRANDS, tamper=_end_an_errand_twice),
    25: Proof(plan_of(1), off="cancel forgets to abort", strikes=BARGE_INS),
}
