"""A cancel at every await point: runs in which one command, or the loss of a task, strikes at the nth suspension.

Where the engine and the server can be suspended is found by watching the loop, not by reading the code: every task whose code
is theirs is counted each time it gives up the loop. Rules kept here: number and seed decide a run; ten runs share a plan, and
the first of them only counts; what strikes is what clients and sockets can do, or what the engine does to its own tasks.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, Literal

import msgspec

from duologue.engine.duplex.commands import CancelInput, ClearAudio
from duologue.engine.duplex.events import ErrorRaised, InputCleared
from duologue.sim.checkers import Violation, judge
from duologue.sim.loop import VirtualRuntime
from duologue.sim.orders import MAKERS
from duologue.sim.outcome import Outcome, evidence_of
from duologue.sim.outcome import live as simulated
from duologue.sim.plan import (
    Choices,
    Deployment,
    Detector,
    Family,
    Order,
    Person,
    Plan,
    Reopen,
    ReplicaFault,
    Rest,
    Say,
    Step,
    Until,
)
from duologue.sim.sample import Struck
from duologue.sim.talker import Talker
from duologue.sim.world import World

SHARED: Final = 10
"""So many runs share a plan."""

ORDERS: Final = ("cancel", "output_clear", "clear", "input_cancel", "barge_in", "signal", "close", "commit", "create")
LOSSES: Final = ("kill", "hang_up", "task")
OURS: Final = ("/duologue/engine/", "/duologue/server/")
LOSABLE: Final = ("append ", "cleanup ")
"""Tasks of a session that are cancelled by time-outs and endings, and so must stand it at any point."""

SETTLED_S: Final = 3.0


Watch = Callable[[Coroutine[Any, Any, object]], None]


class Watched(Coroutine[Any, Any, object]):
    """A coroutine; ``suspended`` is told each time it gives up the loop."""

    def __init__(self, coro: Coroutine[Any, Any, object], suspended: Watch) -> None:
        self._coro = coro
        self._suspended = suspended

    def send(self, value: Any, /) -> Any:
        """Go on until the next suspension."""
        waiting = self._coro.send(value)
        self._suspended(self._coro)
        return waiting

    def throw(self, *fault: Any) -> Any:
        """Go on with an exception."""
        waiting = self._coro.throw(*fault)
        self._suspended(self._coro)
        return waiting

    def close(self) -> None:
        """End it where it is."""
        self._coro.close()

    def __await__(self) -> Generator[Any, Any, object]:
        return self._coro.__await__()


def await_point(coro: object) -> str | None:
    """The innermost line of engine or server at which ``coro`` is suspended; ``None`` if there is none."""
    found = None
    step: Any = coro
    while step is not None:
        frame = getattr(step, "cr_frame", None) or getattr(step, "ag_frame", None) or getattr(step, "gi_frame", None)
        if frame is not None and any(part in frame.f_code.co_filename for part in OURS):
            name = frame.f_code.co_filename
            found = f"{name[name.index('/duologue/') + 1 :]}:{frame.f_lineno} {frame.f_code.co_name}"
        driven = frame.f_locals.get("coro") if frame is not None and frame.f_code.co_name == "_continue" else None
        if driven is not None:  # begun inline, finished in a task (see `engine.lanes`)
            step = driven
            continue
        step = getattr(step, "cr_await", None) or getattr(step, "ag_await", None) or getattr(step, "gi_yieldfrom", None)
    return found


class Strike(msgspec.Struct, frozen=True):
    """``what`` happens when the tasks of engine and server have been suspended ``at`` times."""

    at: int
    what: str
    pick: int = 0


def plan_of(seed: int) -> Plan:
    """A short conversation over stages and detectors that take their time, so that there is much to wait for."""
    dice = random.Random(f"strike:{seed}")
    ga = dice.random() < 0.25
    families: tuple[Family, ...] = ("ephemeral", "ephemeral", "resident")
    family = dice.choice(families)
    manual = family == "ephemeral" and dice.random() < 0.3
    detectors: tuple[Literal["server_vad", "semantic_vad"], ...] = ("server_vad", "semantic_vad")
    detection = None if manual else dice.choice(detectors)
    deployment = Deployment(
        family=family,
        streams_input=dice.random() < 0.5,
        text_turns=dice.random() < 0.8,
        transcribes=dice.random() < 0.8,
        transit_ms=dice.choice((0, 1, 15)),
        think_ms=(5, 40),
        sentences=(1, 3),
        sentence_ms=(200, 1_200),
        detector=Detector(delay_ms=dice.choice((0, 7))),
        runtime={
            "max_sessions": 1,
            "disconnect_grace_s": 1.0,
            "reaper_interval_s": 0.5,
            "idle_ttl_s": 20.0,
            "submit_timeout_s": 2.0,
            "close_timeout_s": 2.0,
        },
    )
    stages = 1 if family == "resident" else 3
    slow = tuple(
        ReplicaFault(stage=stage, operation=operation, nth=nth, how="slow", ms=dice.choice((1, 10, 60)))
        for stage in range(stages)
        for operation in ("submit", "update", "abort")
        for nth in range(1, 13)
        if dice.random() < 0.6
    )
    said = Say(loud_ms=320, quiet_ms=700, chunk_bytes=6_400)
    over = Say(loud_ms=400, quiet_ms=900, chunk_bytes=6_400)
    steps: list[Step] = [said]
    if not manual:
        steps += [Rest(ms=dice.choice((50, 300, 900))), over]
    steps += [Until(moment="done", limit_ms=2_000), Reopen(), said]
    hands: tuple[Step, ...] = ()
    if manual:
        hands = (Rest(ms=700), *_commits(dice))
    person = Person(
        name="ann",
        dialect="ga" if ga else "duplex",
        choices=Choices(detection=detection, auto_response=family == "resident" and dice.random() < 0.5),
        voice=tuple(steps),
        hands=hands,
        leave=dice.choice(("close", "hang_up")),
    )
    return Plan(
        seed=seed, shuffle=dice.random() < 0.5, deployments=(deployment,), people=(person,), replica_faults=slow
    )


def _commits(dice: random.Random) -> tuple[Step, ...]:
    return (Order(name="commit", pick=1), Rest(ms=dice.choice((20, 400))), Order(name="create"), Rest(ms=500))


class Suspensions:
    """Counts where tasks of engine and server give up the loop, and strikes once."""

    def __init__(self, world: World, strike: Strike | None) -> None:
        self.world = world
        self.strike = strike
        self.count = 0
        self.points: dict[str, list[int]] = {}
        self.losable: list[int] = []
        self.struck = ""

    def wrap(self, coro: Coroutine[Any, Any, object]) -> Coroutine[Any, Any, object]:
        """What the loop makes a task of, in place of ``coro``."""
        return Watched(coro, self.suspended)

    def suspended(self, coro: Coroutine[Any, Any, object]) -> None:
        """A task has just given up the loop."""
        task = asyncio.current_task()
        if task is None or task.get_name() == "inproc-stage" or (point := await_point(coro)) is None:
            return
        talker = self.world.talkers[0] if self.world.talkers else None
        if talker is None or talker.pipe is None or not talker.pipe.alive:
            return
        self.count += 1
        self.points.setdefault(point, []).append(self.count)
        if task.get_name().startswith(LOSABLE):
            self.losable.append(self.count)
        strike = self.strike
        if strike is None or self.struck or self.count < strike.at:
            return
        if strike.what != "task" or task.get_name().startswith(LOSABLE):
            self.struck = point
            self.world.runtime.loop.call_soon(self._strike, strike, talker, task)

    def _strike(self, strike: Strike, talker: Talker, task: asyncio.Task[object]) -> None:
        runtime = self.world.runtime
        self.world.trace.note("world", "strike", strike.what)
        self.world.trace.count(f"strike.{strike.what}")
        match strike.what:
            case "kill":
                talker._kill()
            case "hang_up":
                if talker.attempt is not None:
                    talker.attempt.lost = True
                talker.hang_up()
            case "task":
                task.cancel()
            case order:
                talk = talker.talk
                talker._drop_in(MAKERS[order](talk, strike.pick, talk.next_id()))
        runtime.call_at(runtime.now() + SETTLED_S, self._look)

    def _look(self) -> None:
        """Nothing that was started before may still be at a stage unless the session knows it."""
        for site in self.world.sites:
            known: set[str] = set()
            for attachment in site.hub.sessions:
                runner = site.orchestrator.session_manager.runner(attachment.session_id)
                if runner is not None:
                    known.update(runner.session.live_request_ids())
            left = tuple(name for name in site.orchestrator.request_states if name not in known)
            if site.stopped_at is None:
                site.seen.samples.append(Struck(SETTLED_S, left))


def _acknowledged(world: World) -> list[Violation]:
    """Each command that clears the input is answered once: it was cleared, or an error names the command."""
    found = []
    for site in world.sites:
        for session_id, commands in site.seen.commands.items():
            asked = [command.event_id for _, command in commands if isinstance(command, CancelInput | ClearAudio)]
            told = [entry.event for entry in site.seen.told.get(session_id, ())]
            refused = [event.event_id for event in told if isinstance(event, ErrorRaised) and event.event_id in asked]
            cleared = sum(isinstance(event, InputCleared) for event in told)
            if cleared + len(refused) != len(asked):
                text = (
                    f"{session_id}: {len(asked)} commands clear the input, {cleared} were done, {len(refused)} refused"
                )
                found.append(Violation("B25", text))
    return found


def live(plan: Plan, strike: Strike | None) -> tuple[Outcome, Suspensions | None]:
    """Run a plan with a strike (``None``: only count), and judge it as every simulated run is judged."""
    begin = time.process_time()
    made: list[Suspensions] = []

    def watched(runtime: VirtualRuntime, world: World) -> None:
        watch = Suspensions(world, strike)
        made.append(watch)
        runtime.loop.wrap = watch.wrap

    world, violations = simulated(plan, watched)
    watch = made[0] if made else None
    counts: dict[str, int] = {}
    digest = ""
    if watch is not None and world is not None:
        violations += judge(evidence_of(world)) + _acknowledged(world)
        digest = world.trace.digest()
        counts = dict(world.trace.counts)
        if watch.struck:
            counts[f"at {watch.struck}"] = 1
    outcome = Outcome(
        seed=plan.seed,
        digest=digest,
        violations=tuple(violations),
        counts=counts,
        session_s=0.0,
        cpu_s=time.process_time() - begin,
    )
    return outcome, watch


def group(number: int) -> list[tuple[Strike | None, Outcome]]:
    """The runs that share plan ``number``: one that counts, and the others with a strike each.

    Rare await points are struck as often as those at which every frame waits.
    """
    plan = plan_of(number)
    outcome, watch = live(plan, None)
    runs: list[tuple[Strike | None, Outcome]] = [(None, outcome)]
    points = sorted(watch.points.items()) if watch is not None else []
    losable = watch.losable if watch is not None else []
    dice = random.Random(f"strikes:{number}")
    for _ in range(SHARED - 1 if points else 0):
        _, counts = dice.choice(points)
        what = dice.choice(LOSSES) if dice.random() < 0.35 else dice.choice(ORDERS)
        if what == "task":
            counts = losable or counts
        strike = Strike(dice.choice(counts), what, dice.randrange(12))
        runs.append((strike, live(plan, strike)[0]))
    return runs


class Progress(msgspec.Struct, kw_only=True):
    """How far a long run has come: plans done, runs, what struck, and at how many places."""

    plans: int = 0
    runs: int = 0
    cpu_s: float = 0.0
    strikes: dict[str, int] = {}
    points: dict[str, int] = {}
    failures: list[str] = []

    def add(self, number: int, strike: Strike | None, outcome: Outcome) -> None:
        """One more run of plan ``number``."""
        self.runs += 1
        self.cpu_s += outcome.cpu_s
        for name, count in outcome.counts.items():
            kind, _, rest = name.partition(" " if name.startswith("at ") else ".")
            table = {"at": self.points, "strike": self.strikes}.get(kind)
            if table is not None:
                table[rest] = table.get(rest, 0) + count
        self.failures += [f"plan {number}, {strike}: {found.rule}: {found.text}" for found in outcome.violations]


def storm(
    progress: Progress, *, runs: int, minutes: float | None = None, saved: Callable[[Progress], None] = lambda _: None
) -> Progress:
    """Go on until ``runs`` runs are done in all, or ``minutes`` have passed; ``saved`` is called after each plan."""
    begin = time.monotonic()
    while progress.runs < runs and (minutes is None or time.monotonic() - begin < minutes * 60):
        for strike, outcome in group(progress.plans):
            progress.add(progress.plans, strike, outcome)
        progress.plans += 1
        saved(progress)
    return progress
