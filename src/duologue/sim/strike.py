"""A cancel at every await point: runs in which a command, a loss or a stop strikes at the nth suspension.

Where engine, server and client can be suspended is found by watching the loop, not by reading the code: every task is counted
each time it gives up the loop, and the frames under it say at which points it is suspended (:mod:`duologue.sim.suspension`).

Rules kept here: number and strikes decide a run; ten runs share a plan, of which the first only counts; a strike falls while
the task is suspended, before anything else runs; what strikes is what clients, sockets, workers and operators can do, or what
the engine does to its own tasks.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final

import msgspec

from duologue.engine.duplex.commands import CancelInput, ClearAudio
from duologue.engine.duplex.events import ErrorRaised, InputCleared
from duologue.server.shell import SocketShell
from duologue.server.transport import FRAME
from duologue.sim.caller import Caller
from duologue.sim.checkers import Violation, judge
from duologue.sim.loop import VirtualRuntime
from duologue.sim.orders import DUPLEX_ONLY, MAKERS
from duologue.sim.outcome import Outcome, evidence_of
from duologue.sim.outcome import live as simulated
from duologue.sim.plan import Plan
from duologue.sim.sample import Struck
from duologue.sim.strike_plan import LATE_MS, LATECOMER, STRUCK, WITNESS, plan_of
from duologue.sim.suspension import catalogue, elsewhere, suspended_at
from duologue.sim.talker import Talker
from duologue.sim.trace import Entry, anonymous, difference
from duologue.sim.world import World
from duologue.wire import encode
from duologue.wire import server_events as wire

SHARED: Final = 10
"""So many runs share a plan."""

ORDERS: Final = ("cancel", "output_clear", "clear", "input_cancel", "barge_in", "signal", "close", "commit", "create")
LOSSES: Final = ("kill", "hang_up", "task", "death", "leave", "stop")
MODES: Final = ("order", *LOSSES)
LOSABLE: Final = ("append ", "cleanup ", "pump", "inproc-stage", "call ")
"""Tasks that time-outs, endings and servers cancel, and that so must stand it at any point."""
_UNNOTICED: Final = frozenset({*ORDERS, "kill", "hang_up", "leave"})
"""What other sessions may not notice at all."""

SETTLED_S: Final = 3.0
HEALED_S: Final = LATE_MS / 1000 - 5
TRIES: Final = 20

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


class Strike(msgspec.Struct, frozen=True):
    """``what`` happens when tasks have been suspended ``at`` times, or as soon after that as it can."""

    at: int
    what: str
    pick: int = 0


class Suspensions:
    """Counts where tasks give up the loop, and strikes. ``record``: note the points at which they are suspended, too."""

    def __init__(self, world: World, strikes: tuple[Strike, ...], *, record: bool) -> None:
        self.world = world
        self.record = record
        self.count = 0
        self.over = False  # nothing is counted any more, and nothing strikes
        self.points: dict[str, list[int]] = {}
        self.losable: set[int] = set()
        self.connected: set[int] = set()
        self.calling: set[int] = set()
        self.struck: list[tuple[str, tuple[str, ...]]] = []
        self._left = list(strikes)

    def wrap(self, coro: Coroutine[Any, Any, object]) -> Coroutine[Any, Any, object]:
        """What the loop makes a task of, in place of ``coro``."""
        return Watched(coro, self.suspended)

    def suspended(self, coro: Coroutine[Any, Any, object]) -> None:
        """A task has just given up the loop."""
        if self.over:
            return
        self.count += 1
        if self.record:
            self._note(coro)
        if self._left and self.count >= self._left[0].at and self.world.talkers:
            self._try(self._left[0], coro)

    def heal(self) -> None:
        """The latecomer meets no strike, and no more faults of the plan."""
        self.over = True
        for site in self.world.sites:
            site.heal()

    def _note(self, coro: object) -> None:
        for name in suspended_at(coro):
            self.points.setdefault(name, []).append(self.count)
        task = asyncio.current_task()
        if task is not None and task.get_name().startswith(LOSABLE):
            self.losable.add(self.count)
        if self.world.talkers and _shell(self.world, self.world.talkers[0]) is not None:
            self.connected.add(self.count)
        if _calling(self.world):
            self.calling.add(self.count)

    def _try(self, strike: Strike, coro: object) -> None:
        task = asyncio.current_task()
        points = tuple(suspended_at(coro))
        if task is None or not points:
            return
        del self._left[0]
        if not _STRIKES.get(strike.what, _order)(self.world, strike, task):
            self._left.insert(0, strike)
            return
        runtime = self.world.runtime
        self.struck.append((strike.what, points))
        self.world.trace.note("world", "strike", strike.what)
        self.world.trace.count(f"strike.{strike.what}")
        runtime.call_at(runtime.now() + SETTLED_S, self._look)

    def _look(self) -> None:
        """Nothing that sessions started before may still be at a stage unless its session knows it."""
        for site in self.world.sites:
            known: set[str] = set()
            for attachment in site.hub.sessions:
                runner = site.orchestrator.session_manager.runner(attachment.session_id)
                if runner is not None:
                    known.update(runner.session.live_request_ids())
            states = site.orchestrator.request_states
            left = tuple(name for name, state in states.items() if state.session_owned and name not in known)
            if site.stopped_at is None:
                site.seen.samples.append(Struck(SETTLED_S, left))


# What strikes. Each returns whether it could: the suspended task goes on only after it.


def _order(world: World, strike: Strike, task: asyncio.Task[object]) -> bool:
    """The server reads a command at this very moment."""
    del task
    talker = world.talkers[0]
    shell = _shell(world, talker)
    if shell is None or (talker.talk.dialect == "ga" and strike.what in DUPLEX_ONLY):
        return False
    frame = encode(MAKERS[strike.what](talker.talk, strike.pick, talker.talk.next_id()))
    world.trace.note(STRUCK, "out", frame)
    assert talker.pipe is not None
    talker.pipe.server.on_frame(frame)
    shell._take({"type": "websocket.receive", FRAME: frame})
    shell._wake.set()
    return True


def _shell(world: World, talker: Talker) -> SocketShell | None:
    """The struck client's, if it reads, has heard from this client, and left nothing of it unread that a command would
    overtake."""
    pipe, attempt = talker.pipe, talker.attempt
    if pipe is None or attempt is None or not pipe.alive or pipe.up.unread:
        return None
    if not talker.talk.read or talker.talk.read[-1].connection != attempt.number:
        return None
    for shell in world.site(talker.person.deployment).server._shells:
        if shell._transport is pipe.server:
            return shell if shell.connection.full is None and not shell._over else None
    return None


def _kill(world: World, strike: Strike, task: asyncio.Task[object]) -> bool:
    del strike, task
    talker = world.talkers[0]
    if talker.pipe is None or not talker.pipe.alive:
        return False
    talker._kill()
    return True


def _hang_up(world: World, strike: Strike, task: asyncio.Task[object]) -> bool:
    del strike, task
    talker = world.talkers[0]
    if talker.pipe is None or not talker.pipe.alive:
        return False
    if talker.attempt is not None:
        talker.attempt.lost = True
    talker.hang_up()
    return True


def _task(world: World, strike: Strike, task: asyncio.Task[object]) -> bool:
    del strike
    name = task.get_name()
    if not name.startswith(LOSABLE):
        return False
    for caller in world.callers:
        caller.disturbed = caller.disturbed or name in ("inproc-stage", f"call {caller.call.name}")
    task.cancel()
    return True


def _death(world: World, strike: Strike, task: asyncio.Task[object]) -> bool:
    del task
    alive = [replica for replicas in world.sites[0].replicas for replica in replicas if replica.healthy]
    if not alive:
        return False
    for caller in world.callers:
        caller.disturbed = True
    alive[strike.pick % len(alive)].die("a strike killed this replica")
    return True


def _calling(world: World) -> list[Caller]:
    """Clients of HTTP requests that wait for their answers."""
    return [caller for caller in world.callers if caller.task is not None and not caller.task.done()]


def _leave(world: World, strike: Strike, task: asyncio.Task[object]) -> bool:
    del task
    there = _calling(world)
    if not there:
        return False
    there[strike.pick % len(there)].leave()
    return True


def _stop(world: World, strike: Strike, task: asyncio.Task[object]) -> bool:
    """In order, or the engine before its server, or by a fault of the engine."""
    del task
    site = world.sites[0]
    if site.stopped_at is not None:
        return False
    if strike.pick % 3 == 1:
        site.halt()
    world.runtime.spawn(site.stop(crash=strike.pick % 3 == 2), name="misfortune")
    return True


_STRIKES: Final[dict[str, Callable[[World, Strike, asyncio.Task[object]], bool]]] = {
    "kill": _kill,
    "hang_up": _hang_up,
    "task": _task,
    "death": _death,
    "leave": _leave,
    "stop": _stop,
}


# Judging


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


def _served(world: World, watch: Suspensions) -> list[Violation]:
    """Who comes when all is over opens a session and is answered."""
    if any(what == "stop" for what, _ in watch.struck):
        return []
    for talker in world.talkers:
        if talker.person.name != LATECOMER:
            continue
        done = (heard.event for heard in talker.talk.heard if isinstance(heard.event, wire.ResponseDone))
        if not any(event.response.status == "completed" for event in done):
            return [Violation("L1", f"who came after the strike was not answered: {talker.talk.refused}")]
    return []


def live(
    plan: Plan, *strikes: Strike, record: bool | None = None, seen_before: list[Entry] | None = None
) -> tuple[Outcome, Suspensions | None]:
    """Run a plan with strikes, and judge it as every simulated run is judged.

    ``record`` (by default without a strike): note the points. ``seen_before``: what the witness saw of the run without.
    """
    begin = time.process_time()
    made: list[Suspensions] = []

    def watched(runtime: VirtualRuntime, world: World) -> None:
        watch = Suspensions(world, strikes, record=not strikes if record is None else record)
        made.append(watch)
        runtime.loop.wrap = watch.wrap
        runtime.call_at(runtime.now() + HEALED_S, watch.heal)

    world, violations = simulated(plan, watched)
    watch = made[0] if made else None
    counts: dict[str, int] = {}
    digest = ""
    if watch is not None and world is not None:
        violations += judge(evidence_of(world)) + _acknowledged(world) + _served(world, watch)
        digest = world.trace.digest()
        counts = dict(world.trace.counts)
        if seen_before and all(what in _UNNOTICED for what, _ in watch.struck):
            noticed = difference(seen_before, witness(world))
            violations += [] if noticed is None else [Violation("B23", f"{WITNESS} noticed the strike: {noticed}")]
    outcome = Outcome(
        seed=plan.seed,
        digest=digest,
        violations=tuple(violations),
        counts=counts,
        session_s=0.0,
        cpu_s=time.process_time() - begin,
    )
    return outcome, watch


def witness(world: World) -> list[Entry]:
    """What the witness saw and sent."""
    return anonymous(world.trace.of(WITNESS))


class Run(msgspec.Struct, frozen=True):
    """One run of a group: its strikes, what came of it, and the points at which something was suspended, if noted."""

    strikes: tuple[Strike, ...]
    outcome: Outcome
    struck: tuple[tuple[str, tuple[str, ...]], ...]
    reached: dict[str, int] = {}


def _run(plan: Plan, *strikes: Strike, record: bool, seen_before: list[Entry] | None) -> tuple[Run, Suspensions | None]:
    outcome, watch = live(plan, *strikes, record=record, seen_before=seen_before)
    reached = {} if watch is None else {name: len(counts) for name, counts in watch.points.items()}
    struck = () if watch is None else tuple(watch.struck)
    return Run(strikes, outcome, struck, reached), watch


def group(number: int) -> list[Run]:
    """The runs that share plan ``number``: one that counts, one that goes on counting after its strike, the others.

    Rare await points are struck as often as those at which every frame waits. The last runs strike twice.
    """
    plan = plan_of(number)
    dice = random.Random(f"strikes:{number}")
    first, watch = _run(plan, record=True, seen_before=None)
    runs = [first]
    if watch is None or not watch.points:
        return runs
    seen = witness(watch.world)
    second, after = _run(plan, _draw(dice, watch), record=True, seen_before=seen)
    runs.append(second)
    later = {} if after is None else _later(after, second.strikes[0].at)
    for index in range(SHARED - 2):
        strikes: tuple[Strike, ...] = (_draw(dice, watch),)
        if later and after is not None and index >= SHARED - 4:
            strikes = (*second.strikes, _draw(dice, after, later))
        runs.append(_run(plan, *strikes, record=False, seen_before=seen)[0])
    return runs


def _later(watch: Suspensions, at: int) -> dict[str, list[int]]:
    """Points at which something was suspended after the strike."""
    later = {name: [count for count in counts if count > at] for name, counts in watch.points.items()}
    return {name: counts for name, counts in later.items() if counts}


def _draw(dice: random.Random, watch: Suspensions, points: dict[str, list[int]] | None = None) -> Strike:
    """A strike at some point, of a kind that is possible when something is suspended there."""
    places = sorted((points or watch.points).items())
    what, counts = "death", places[0][1]
    ga = watch.world.talkers[0].person.dialect == "ga"
    orders = [name for name in ORDERS if not (ga and name in DUPLEX_ONLY)]
    for _ in range(TRIES):
        _, counts = dice.choice(places)
        what = dice.choice(LOSSES) if dice.random() < 0.45 else dice.choice(orders)
        if what == "task":
            possible = [count for count in counts if count in watch.losable]
        elif what == "leave":
            possible = [count for count in counts if count in watch.calling]
        elif what in ("death", "stop"):
            possible = counts
        else:
            possible = [count for count in counts if count in watch.connected]
        if possible:
            return Strike(dice.choice(possible), what, dice.randrange(12))
    return Strike(dice.choice(counts), "death", dice.randrange(12))


class Progress(msgspec.Struct, kw_only=True):
    """How far a long run has come: plans, runs, what struck, and at which points how often.

    ``reached``: in how many recorded runs something was suspended there; ``points``: strikes by point and mode.
    """

    plans: int = 0
    runs: int = 0
    cpu_s: float = 0.0
    strikes: dict[str, int] = {}
    reached: dict[str, int] = {}
    points: dict[str, dict[str, int]] = {}
    failures: list[str] = []

    def add(self, number: int, run: Run) -> None:
        """One more run of plan ``number``."""
        self.runs += 1
        self.cpu_s += run.outcome.cpu_s
        for name in run.reached:
            self.reached[name] = self.reached.get(name, 0) + 1
        for what, points in run.struck:
            self.strikes[what] = self.strikes.get(what, 0) + 1
            mode = what if what in LOSSES else "order"
            for name in points:
                modes = self.points.setdefault(name, {})
                modes[mode] = modes.get(mode, 0) + 1
        strikes = ", ".join(f"Strike({strike.at}, {strike.what!r}, {strike.pick})" for strike in run.strikes)
        self.failures += [
            f"plan {number}, {strikes or 'no strike'}: {found.rule}: {found.text}" for found in run.outcome.violations
        ]


def storm(
    progress: Progress, *, runs: int, minutes: float | None = None, saved: Callable[[Progress], None] = lambda _: None
) -> Progress:
    """Go on until ``runs`` runs are done in all, or ``minutes`` have passed; ``saved`` is called after each plan."""
    begin = time.monotonic()
    while progress.runs < runs and (minutes is None or time.monotonic() - begin < minutes * 60):
        for run in group(progress.plans):
            progress.add(progress.plans, run)
        progress.plans += 1
        saved(progress)
    return progress


def table(progress: Progress) -> str:
    """Await points by name: how often something was suspended there, and struck in which way. First what was not reached."""
    lines = [f"{'reached':>8}" + "".join(f"{mode:>9}" for mode in MODES) + "  await point"]
    names = [point.name for point in catalogue()]
    rows = [
        (progress.reached.get(name, 0), progress.points.get(name, {}), name) for name in names if not elsewhere(name)
    ]
    for reached, modes, name in sorted(rows, key=lambda row: (row[0], row[2])):
        lines.append(f"{reached:8}" + "".join(f"{modes.get(mode, 0):9}" for mode in MODES) + f"  {name}")
    never = [name for reached, _, name in rows if not reached]
    unstruck = sum(1 for _, modes, _ in rows for mode in MODES if not modes.get(mode))
    lines.append(
        f"{len(names)} await points: {len(rows) - len(never)} reached, {len(never)} not yet, {len(names) - len(rows)} cannot "
        f"be; {len(rows) * len(MODES) - unstruck} of {len(rows) * len(MODES)} pairs of point and way were struck"
    )
    return "\n".join(lines)
