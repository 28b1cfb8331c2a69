"""The world of one run: sites, clients, errands and misfortunes on one virtual clock, from the first packet to silence.

Rules kept here: faults stop at a certain point, and after it everything must come to rest within a bound; what is left over
is a violation; the world itself leaves nothing behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Final

from duologue.engine.messages import (
    AbortRequest,
    AddCompanionRequest,
    AddRequest,
    CollectiveRpc,
    RegisterReplica,
    StreamingUpdate,
    UnregisterReplica,
)
from duologue.outputs import StagePrompt
from duologue.sim.caller import Caller
from duologue.sim.checkers.evidence import session_of
from duologue.sim.library import LibraryTalker
from duologue.sim.loop import VirtualRuntime
from duologue.sim.plan import Death, Errand, Leap, Operation, Person, Plan, Shutdown, Strike
from duologue.sim.sample import Idle
from duologue.sim.site import Site
from duologue.sim.talker import Talker
from duologue.sim.trace import Trace

WORK_LIMIT_S: Final = 600.0
REST_S: Final = 150.0  # beside the time-outs of the sessions: sockets that went dark, clean-ups tried again
IDLE_AFTER_S: Final = 18.0  # before the shortest idle time-out
WORKS_S: Final = 5.0  # longer than the longest time that a model takes over a piece of its input
POLL_S: Final = 0.5
PATIENCE_POLLS: Final = 200  # of a tenth of a second: so long somebody waits for an errand that has been sent whole
DRAIN_S: Final = 2.0


@dataclass(slots=True)
class World:
    """Everything of one run."""

    runtime: VirtualRuntime
    plan: Plan
    trace: Trace = field(init=False)
    sites: list[Site] = field(init=False)
    talkers: list[Talker] = field(default_factory=list)
    callers: list[Caller] = field(default_factory=list)
    left_over: list[str] = field(default_factory=list)
    healed_at: float = 0.0

    def __post_init__(self) -> None:
        self.trace = Trace(self.runtime.loop.elapsed)
        self.sites = [Site(self.runtime, self.plan, index, self.trace) for index in range(len(self.plan.deployments))]

    @property
    def seed(self) -> int:
        """What every die in this world is made of."""
        return self.plan.seed

    def site(self, index: int) -> Site:
        """A deployment."""
        return self.sites[index]

    async def live(self) -> None:
        """From the start of the engines to their end."""
        for site in self.sites:
            await site.start()
        misfortunes = [self.runtime.spawn(coro, name="misfortune") for coro in self._misfortunes()]
        errands = [self.runtime.spawn(self._run_errand(errand), name="errand") for errand in self.plan.errands]
        operations = [self._operate(number, operation) for number, operation in enumerate(self.plan.operations)]
        errands += [self.runtime.spawn(coro, name="operation") for coro in operations]
        self.callers = [Caller(self, call) for call in self.plan.calls]
        errands += [self.runtime.spawn(caller.run(), name="caller") for caller in self.callers]
        self.talkers = [_talker(self, person) for person in self.plan.people]
        work = [self.runtime.spawn(talker.run(), name=f"talker {talker.person.name}") for talker in self.talkers]
        if work or errands:
            _, late = await asyncio.wait([*work, *errands], timeout=WORK_LIMIT_S)
            for task in late:
                self.left_over.append(f"{task.get_name()} did not end within {WORK_LIMIT_S:g} s")
                task.cancel()
        for task in misfortunes:
            task.cancel()
        await asyncio.gather(*misfortunes, *work, *errands, return_exceptions=True)
        await self._come_to_rest()
        for site in self.sites:
            await site.stop()
        await self._end_clients()
        self._check_stopped()

    async def _come_to_rest(self) -> None:
        """Faults stop; who stayed is left alone; everything must become idle or close."""
        for site in self.sites:
            site.heal()
        self.healed_at = self.runtime.now()
        await self._look_at_the_idle()
        limit_s = REST_S + max(_time_outs(site) for site in self.sites)
        for _ in range(round(limit_s / POLL_S)):
            if not any(site.tables() for site in self.sites):
                break
            await asyncio.sleep(POLL_S)
        self.trace.note("world", "rest", f"{self.runtime.now() - self.healed_at:.1f} s after the last fault")
        for site in self.sites:
            site.border.rested(f"{limit_s:g} s after the last fault", dict(site.tables()))

    async def _look_at_the_idle(self) -> None:
        """Who stayed and is silent: nothing may wait in a session in which nothing happens."""
        # Whoever vanished reads nothing, and the server hears of it only when its next ping is not answered.
        staying = [talker for talker in self.talkers if talker.person.leave == "stay"]
        if not staying:
            return
        stayed = {talk.session_id for talker in staying for talk in talker.conversations}
        after_s = IDLE_AFTER_S
        await asyncio.sleep(after_s)
        while after_s < WORK_LIMIT_S and (stayed := self._look(stayed, after_s)):
            after_s += WORKS_S
            await asyncio.sleep(WORKS_S)

    def _look(self, stayed: set[str], after_s: float) -> set[str]:
        """Note what waits in these sessions; returns those of which nothing can be said yet, since their model works."""
        working: set[str] = set()
        for site in self.sites:
            manager = site.orchestrator.session_manager
            for attachment in site.hub.sessions:
                session_id = attachment.session_id
                runner = manager.runner(session_id)
                if runner is None or attachment.owner is None or session_id not in stayed:
                    continue
                # A resident model's request lives as long as its epoch; what was taken is for the socket to say.
                kept = ("untaken", "requests") if site.plan.family == "resident" else ("untaken",)
                left = {name: size for name, size in runner.session.tables().items() if size and name not in kept}
                # Also one outside the conversation: what a stage never ends is open until its session expires.
                answers = runner.session.active_response_id is not None or bool(left.get("asides"))
                if (left or answers) and self._works(site, session_id):
                    working.add(session_id)
                    continue
                if answers:
                    continue
                self.trace.count("looked_at_idle")
                waiting = left if runner.session.phase == "open" else {}
                site.seen.samples.append(Idle(after_s, session_id, runner.session.held(), waiting))
        return working

    def _works(self, site: Site, session_id: str) -> bool:
        """Whether a resident model is at work on what it was given: faster than it, or than the way to it, is who speaks."""
        since = self.trace.now() - WORKS_S
        made = (made for made in reversed(site.seen.output) if session_of(made.request_id) == session_id)
        last = next(made, None) if site.plan.family == "resident" else None
        return last is not None and last.at >= since

    async def _end_clients(self) -> None:
        for talker in self.talkers:
            await talker.end()

    def _check_stopped(self) -> None:
        for site in self.sites:
            site.border.rested("after the stop", dict(site.tables()))

    # What goes wrong

    def _misfortunes(self) -> list[Coroutine[object, object, None]]:
        plan = self.plan
        return [
            *(self._death(death) for death in plan.deaths),
            *(self._leap(leap) for leap in plan.leaps),
            *(self._shut_down(shutdown) for shutdown in plan.shutdowns),
            *(self._strike(strike) for strike in plan.strikes),
        ]

    async def _death(self, death: Death) -> None:
        await asyncio.sleep(death.at_ms / 1000)
        alive = [replica for replica in self.sites[death.deployment].replicas[death.stage] if replica.healthy]
        if alive:
            self.trace.count("replica.death")
            self.trace.note("world", "death", f"d{death.deployment} stage {death.stage}")
            alive[death.replica % len(alive)].die("the plan killed this replica", unsaid_s=death.unsaid_ms / 1000)

    async def _leap(self, leap: Leap) -> None:
        await asyncio.sleep(leap.at_ms / 1000)
        self.trace.count("leap.wall" if leap.wall else "leap.stall")
        self.trace.note("world", "leap", f"{leap.by_ms} ms")
        if leap.wall:
            self.runtime.leap_wall(leap.by_ms / 1000)
        else:
            self.runtime.loop.leap(leap.by_ms / 1000)

    async def _strike(self, strike: Strike) -> None:
        await asyncio.sleep(strike.at_ms / 1000)
        left = strike.nth

        def seen(task: asyncio.Task[object]) -> None:
            nonlocal left
            if not task.get_name().startswith(strike.kind):
                return
            left -= 1
            if left < 0:
                self.runtime.on_spawn.remove(seen)
                self._cancel_after(task, strike)

        self.runtime.on_spawn.append(seen)

    def _cancel_after(self, task: asyncio.Task[object], strike: Strike, turn: int = 0) -> None:
        if turn < strike.turns and not task.done():
            self.runtime.loop.call_soon(self._cancel_after, task, strike, turn + 1)
            return
        if not task.done():
            self.trace.count(f"strike.{strike.kind}")
            self.trace.note("world", "strike", task.get_name().partition(" ")[0])
            task.cancel()

    async def _shut_down(self, shutdown: Shutdown) -> None:
        await asyncio.sleep(shutdown.at_ms / 1000)
        self.trace.count("site.shutdown")
        self.trace.note("world", "shutdown", f"d{shutdown.deployment}{' crash' if shutdown.crash else ''}")
        await self.sites[shutdown.deployment].stop(crash=shutdown.crash)

    # Errands

    async def _run_errand(self, errand: Errand) -> None:
        await asyncio.sleep(errand.at_ms / 1000)
        site = self.sites[errand.deployment]
        post = site.orchestrator.post
        last = errand.pieces - 1
        prompt = StagePrompt(text=errand.text, final=last == 0)
        self.trace.count("errand")
        companions = {f"{errand.name}-{number}": f"role{number}" for number in range(errand.companions)}
        post(
            AddRequest(
                request_id=errand.name,
                prompt=prompt,
                entry_stage_id=errand.entry,
                resumable=errand.pieces > 1,
                companion_roles=tuple(companions.values()),
            )
        )
        for name, role in companions.items():
            await asyncio.sleep(errand.gap_ms / 1000)
            beside = StagePrompt(text=f"{errand.text}, {role}", final=True)
            post(AddCompanionRequest(request_id=name, parent_id=errand.name, role=role, prompt=beside))
        if errand.misfortune == "dropped":
            await asyncio.sleep(0.005)
            post(AbortRequest(request_ids=tuple(companions)[:1], control_id=f"drop-{errand.name}"))
        if errand.abort_ms is not None:
            await asyncio.sleep(errand.abort_ms / 1000)
            post(AbortRequest(request_ids=(errand.name,), control_id=f"abort-{errand.name}"))
        for index in range(1, errand.pieces):
            await asyncio.sleep(errand.gap_ms / 1000)
            piece = StagePrompt(text=f"{errand.text} {index}", final=index == last)
            post(StreamingUpdate(request_id=errand.name, prompt=piece))
        for _ in range(PATIENCE_POLLS):
            said = site.seen.errands.get(errand.name, [])
            if site.stopped_at is not None or (said and said[-1][1] != "output"):
                return
            await asyncio.sleep(0.1)
        # No deadline is the engine's: whoever asked gives up, and takes the request back as it goes.
        self.trace.count("errand.given_up")
        post(AbortRequest(request_ids=(errand.name,), control_id=f"give-up-{errand.name}"))

    async def _operate(self, number: int, operation: Operation) -> None:
        await asyncio.sleep(operation.at_ms / 1000)
        site, control_id = self.sites[operation.deployment], f"operation-{number}"
        if site.stopped_at is not None:
            return
        self.trace.count(f"operation.{operation.what}")
        stage = operation.stage
        match operation.what:
            case "call":
                site.orchestrator.post(CollectiveRpc(control_id=control_id, method="ping", stage_ids=(stage,)))
            case "register":
                site.orchestrator.post(RegisterReplica(control_id=control_id, stage_id=stage))
            case "unregister":
                first = min(site.orchestrator.stage_pools[stage].live_replica_ids, default=0)
                site.orchestrator.post(
                    UnregisterReplica(control_id=control_id, stage_id=stage, replica_id=first, drain_s=DRAIN_S)
                )
        for _ in range(100):
            if control_id in site.seen.answers or site.stopped_at is not None:
                return
            await asyncio.sleep(0.1)
        self.left_over.append(f"{operation.what} was not answered")


def _time_outs(site: Site) -> float:
    config = site.config
    return sum((config.idle_ttl_s or 0.0, config.disconnect_grace_s, config.submit_timeout_s, config.close_timeout_s))


def _talker(world: World, person: Person) -> Talker:
    return LibraryTalker(world, person) if person.library else Talker(world, person)
