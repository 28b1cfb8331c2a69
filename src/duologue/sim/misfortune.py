"""What goes wrong in a run: faults drawn onto a plan.

Rules kept here: with a witness in the plan only faults that belong to other clients are drawn, since the witness must not
notice anything.
"""

from __future__ import annotations

import random
from typing import Final

import msgspec

from duologue.sim.plan import (
    Deaf,
    Death,
    HookFault,
    Kill,
    Leap,
    Lose,
    Mishap,
    Person,
    Plan,
    Reopen,
    ReplicaFault,
    Rest,
    Resume,
    Return,
    Shutdown,
    Stall,
    Step,
    Strike,
    WorkFault,
)

_HOOKS: Final = (
    *("validate_config", "create_session_state", "sampling_params", "plan_append", "plan_append"),
    *("commit_append", "decide", "decide", "silence_unit", "edge1", "edge2"),
)
_WORK: Final[tuple[Mishap, ...]] = ("raise", "refuse", "hang", "lose", "misfit", "foreign", "slow")
_REPLICA: Final[tuple[tuple[str, tuple[Mishap, ...]], ...]] = (
    ("submit", ("raise", "refuse", "misfit", "slow", "hang", "lose")),
    ("update", ("raise", "refuse", "misfit", "slow", "hang", "lose")),
    ("abort", ("raise", "slow", "hang", "late", "late")),
    ("output", ("raise", "double", "foreign")),
    ("start", ("raise",)),
    ("close", ("slow", "raise")),
)
# Tasks that somebody beside the runtime holds, and may cancel. What asks the engine is held by nobody.
_STRUCK: Final = ("append", "cleanup", "cleanup", "connection", "pump", "inproc-stage", "inproc-stage")
_WORK_MS: Final = (0, 0, 200, 2_500)
_UNSAID_MS: Final = (0, 0, 10, 120, 1_000)


class Misfortunes:
    """Draws the faults of one plan."""

    def __init__(self, dice: random.Random, on: frozenset[str]) -> None:
        self._dice = dice
        self._on = on

    def befall(self, plan: Plan) -> Plan:
        """``plan`` with everything that goes wrong in it."""
        people = tuple(person if person.name == plan.witness else self._person(person) for person in plan.people)
        plan = msgspec.structs.replace(plan, people=people)
        if plan.witness:
            return plan
        return msgspec.structs.replace(
            plan,
            replica_faults=self._replica_faults(plan),
            deaths=self._deaths(plan),
            leaps=self._leaps(),
            shutdowns=self._shutdowns(plan),
            strikes=self._strikes(),
        )

    def _person(self, person: Person) -> Person:
        on = self._on
        return msgspec.structs.replace(
            person,
            hands=self._woven(person),
            hooks=self._hooks() if "hooks" in on else (),
            work=self._work() if "work" in on else (),
        )

    def _woven(self, person: Person) -> tuple[Step, ...]:
        """The hands' steps with losses, stalls and the like between them."""
        dice, on = self._dice, self._on
        steps = list(person.hands)
        for name in ("loss", "deaf", "stall", "kill"):
            if name not in on or dice.random() < 0.3:
                continue
            mishap = [Rest(ms=dice.choice((1, 400, 1_300, 2_900))), *self._mishap(name)]
            at = dice.randint(0, len(steps))
            steps[at:at] = mishap
        if "few_slots" in on:
            steps += [Rest(ms=dice.choice((100, 2_000))), Reopen()]
        return tuple(steps)

    def _mishap(self, name: str) -> list[Step]:
        dice = self._dice
        match name:
            case "deaf":
                return [Deaf(ms=dice.choice((300, 2_000, 9_000)))]
            case "stall":
                return [Stall(ms=dice.choice((200, 1_500, 6_000)))]
            case "kill":
                return [Kill(), Rest(ms=dice.choice((0, 700))), Resume()]
            case _:
                return self._loss()

    def _loss(self) -> list[Step]:
        dice = self._dice
        returns: tuple[Return, ...] = (
            "plain",
            "plain",
            "race",
            "old_token",
            "wrong_token",
            "ahead",
            "behind",
            "acked",
            "acked",
        )
        steps: list[Step] = []
        for _ in range(dice.choice((1, 1, 2, 3))):
            if dice.random() < 0.2:
                steps.append(Resume(how="takeover"))
            else:
                steps.append(Lose(how=dice.choice(("reset", "reset", "partial", "half_open", "close"))))
                steps.append(Rest(ms=dice.choice((0, 20, 500, 2_000, 4_000))))
                steps.append(Resume(how=dice.choice(returns)))
                if dice.random() < 0.4:
                    steps.append(Resume())
            steps.append(Rest(ms=dice.choice((0, 300, 1_500))))
        return steps

    def _hooks(self) -> tuple[HookFault, ...]:
        dice = self._dice
        found: list[HookFault] = []
        for _ in range(dice.choice((1, 1, 2))):
            hook = dice.choice(_HOOKS)
            how: Mishap = "raise"
            if hook == "sampling_params":
                how = dice.choice(("raise", "misfit"))
            elif hook.startswith("edge"):
                how = dice.choice(("raise", "misfit", "lose"))
            elif hook == "validate_config":
                how = dice.choice(("raise", "refuse"))
            nth = 1 if hook == "create_session_state" else dice.choice((1, 2, 2, 3, 5, 9))
            found.append(HookFault(hook=hook, nth=nth, how=how))
        return tuple(found)

    def _work(self) -> tuple[WorkFault, ...]:
        dice = self._dice
        return tuple(
            WorkFault(
                stage=dice.choice((0, 0, 1, 2)),
                nth=dice.choice((1, 1, 2, 3)),
                how=dice.choice(_WORK),
                ms=dice.choice(_WORK_MS),
            )
            for _ in range(dice.choice((1, 1, 2)))
        )

    def _replica_faults(self, plan: Plan) -> tuple[ReplicaFault, ...]:
        return (*self._single_faults(plan), *self._stubborn(plan), *self._refusals(plan))

    def _stubborn(self, plan: Plan) -> tuple[ReplicaFault, ...]:
        """A stage that cannot be told to stop, from some point on: what it holds is in quarantine until it can."""
        if "stubborn" not in self._on:
            return ()
        dice = random.Random(f"{plan.seed}:stubborn")
        deployment = dice.randrange(len(plan.deployments))
        stages = 3 if plan.deployments[deployment].family == "ephemeral" else 1
        ways: tuple[Mishap, ...] = ("raise", "raise", "hang", "slow")
        fault = ReplicaFault(
            deployment=deployment,
            operation="abort",
            nth=dice.choice((1, 1, 2, 3)),
            how=dice.choice(ways),
            ms=2_500,
            times=dice.choice((2, 5, 30)),
        )
        return tuple(msgspec.structs.replace(fault, stage=stage) for stage in range(stages))

    def _refusals(self, plan: Plan) -> tuple[ReplicaFault, ...]:
        """A resident model does not take a piece of its input, while more is on its way."""
        dice = random.Random(f"{plan.seed}:refusals")
        if "replicas" not in self._on or dice.random() < 0.4:
            return ()
        ways: tuple[Mishap, ...] = ("refuse", "refuse", "misfit", "raise")
        return tuple(
            ReplicaFault(deployment=index, operation="update", nth=dice.choice((2, 3, 5, 8, 13)), how=dice.choice(ways))
            for index, deployment in enumerate(plan.deployments)
            if deployment.family == "resident"
        )

    def _single_faults(self, plan: Plan) -> tuple[ReplicaFault, ...]:
        if "replicas" not in self._on:
            return ()
        dice = self._dice
        found: list[ReplicaFault] = []
        for _ in range(dice.choice((1, 2, 3, 4))):
            deployment = dice.randrange(len(plan.deployments))
            operation, ways = dice.choice(_REPLICA)
            stage = dice.randrange(3) if plan.deployments[deployment].family == "ephemeral" else 0
            found.append(
                ReplicaFault(
                    deployment=deployment,
                    stage=stage,
                    operation=operation,  # type: ignore[arg-type]
                    nth=dice.choice((1, 1, 2, 2, 3, 5, 8, 20)),
                    how=dice.choice(ways),
                    ms=dice.choice(_WORK_MS),
                )
            )
        return tuple(found)

    def _deaths(self, plan: Plan) -> tuple[Death, ...]:
        if "deaths" not in self._on:
            return ()
        dice, unsaid = self._dice, random.Random(f"{plan.seed}:unsaid")
        found: list[Death] = []
        for _ in range(dice.choice((1, 1, 2, 4))):
            deployment = dice.randrange(len(plan.deployments))
            stage = dice.randrange(3) if plan.deployments[deployment].family == "ephemeral" else 0
            at_ms = dice.choice((200, 900, 1_400, 1_800, 2_200, 3_000, 4_000))
            replica, unsaid_ms = dice.randrange(3), unsaid.choice(_UNSAID_MS)
            found.append(Death(deployment=deployment, stage=stage, replica=replica, at_ms=at_ms, unsaid_ms=unsaid_ms))
        return tuple(found)

    def _leaps(self) -> tuple[Leap, ...]:
        if "leaps" not in self._on:
            return ()
        dice = self._dice
        wall = dice.random() < 0.4
        by_ms = dice.choice((-86_400_000, 3_600_000)) if wall else dice.choice((150, 2_000, 15_000))
        return (Leap(at_ms=dice.choice((700, 1_500, 3_000)), by_ms=by_ms, wall=wall),)

    def _strikes(self) -> tuple[Strike, ...]:
        if "strikes" not in self._on:
            return ()
        dice = self._dice
        return tuple(
            Strike(
                at_ms=dice.choice((0, 700, 1_500, 3_000)),
                kind=dice.choice(_STRUCK),
                nth=dice.choice((0, 0, 1, 2, 5, 9)),
                turns=dice.choice((0, 1, 1, 2, 3, 5, 8)),
            )
            for _ in range(dice.choice((1, 2, 4)))
        )

    def _shutdowns(self, plan: Plan) -> tuple[Shutdown, ...]:
        crash = "crash" in self._on
        if "shutdown" not in self._on and not crash:
            return ()
        dice = self._dice
        at_ms = dice.choice((0, 300, 1_000, 1_700, 2_500, 5_000))
        return (Shutdown(deployment=dice.randrange(len(plan.deployments)), at_ms=at_ms, crash=crash),)
