"""Plans for strikes: short conversations in which there is much to wait for, one theme after the other.

Rules kept here: the number decides everything; a plan's theme goes round with its number, so that a few plans in a row have
them all; further themes join by chance; somebody comes late, when all is over, and must be served.
"""

from __future__ import annotations

import random
from typing import Final, Literal

import msgspec

from duologue.sim.plan import (
    Call,
    CallKind,
    Choices,
    Deaf,
    Death,
    Deployment,
    Detector,
    Errand,
    HookFault,
    Link,
    Lose,
    Operation,
    Order,
    Person,
    Plan,
    Reopen,
    ReplicaFault,
    Rest,
    Resume,
    Say,
    Step,
    Until,
    WorkFault,
)
from duologue.sim.toolbox import TIMEOUT_S

THEMES: Final = (
    *("talk", "resident", "detection", "calls", "errands", "rebuild", "asides", "operations", "queue", "library"),
    *("resume", "compaction", "failures", "models", "start"),
)
STRUCK: Final = "ann"
WITNESS: Final = "bob"
LATECOMER: Final = "zoe"
LATE_MS: Final = 45_000
"""When the latecomer arrives: everything else is over by then."""

_RESIDENT: Final = frozenset({"resident", "rebuild", "compaction"})
_EPHEMERAL: Final = frozenset({"asides", "calls", "errands", "failures"})
_SHARED: Final = frozenset({"rebuild", "operations", "failures"})
"""Themes in which sessions notice each other, by the replicas that they share."""
_SAID: Final = Say(loud_ms=320, quiet_ms=700, chunk_bytes=10_240)
_WRITTEN: Final[tuple[Step, ...]] = (Order(name="item"), Order(name="create"), Until(moment="done", limit_ms=8_000))
_CALLS: Final[tuple[CallKind, ...]] = ("chat", "spoken_chat", "heard_chat", "speech", "transcription")


def plan_of(number: int) -> Plan:
    """The plan with this number."""
    return _Draft(number).plan()


class _Draft:
    def __init__(self, number: int) -> None:
        self.number = number
        self.dice = random.Random(f"strike:{number}")
        theme = THEMES[number % len(THEMES)]
        on = {theme} | {other for other in THEMES if self.dice.random() < 0.06}
        if theme in _EPHEMERAL or (theme not in _RESIDENT and on & _EPHEMERAL):
            on -= _RESIDENT
        elif on & _RESIDENT:
            on -= _EPHEMERAL
        self.on = frozenset(on)
        self.resident = bool(on & _RESIDENT)
        self.manual = not self.resident and "detection" not in on and self.dice.random() < 0.25
        self.witness = "queue" in on or (not on & _SHARED and self.dice.random() < 0.3)

    def plan(self) -> Plan:
        """Put together what was drawn."""
        deployments = [self._deployment()]
        if "models" in self.on:
            other = msgspec.structs.replace(
                self._deployment(), family="ephemeral", context_units=0, compacts=False, rebuilds=False
            )
            deployments.append(other)
        people = [self._struck(), self._latecomer()]
        if self.witness:
            people.append(self._bystander(len(deployments) - 1))
        return Plan(
            seed=self.number,
            shuffle=not self.witness and self.dice.random() < 0.5,
            deployments=tuple(deployments),
            people=tuple(people),
            errands=self._errands(),
            calls=self._calls(),
            operations=self._operations(),
            replica_faults=() if self.witness else self._slow(),
            deaths=self._deaths(),
            keeps=tuple(sorted(self.on)),
        )

    # -- who is there

    def _struck(self) -> Person:
        dice, on = self.dice, self.on
        detections: tuple[Literal["server_vad", "semantic_vad"], ...] = ("server_vad", "semantic_vad")
        return Person(
            name=STRUCK,
            library="library" in on,
            dialect="ga" if not on & {"resume", "queue"} and dice.random() < 0.25 else "duplex",
            arrives_ms=60 if "queue" in on else 0,
            choices=Choices(
                detection=None if self.manual else dice.choice(detections),
                auto_response=self.resident and dice.random() < 0.5,
                tools="mixed" if "asides" in on else "off",
            ),
            link=self._link(),
            event_acks="resume" not in on,
            voice=self._voice(),
            hands=self._hands(),
            leave=dice.choice(("close", "hang_up")),
            work=self._work(),
            hooks=self._hooks(),
        )

    def _link(self) -> Link:
        slow_ms = self.dice.choice((1, 4)) if self.on & {"resume", "library", "start"} else 0
        if "resume" in self.on and self.dice.random() < 0.6:
            return Link(window_bytes=2_000, read_bytes_per_s=50_000, slow_ms=slow_ms)
        return Link(slow_ms=slow_ms)

    def _voice(self) -> tuple[Step, ...]:
        dice = self.dice
        steps: list[Step] = [_SAID]
        if not self.manual and dice.random() < 0.5:
            steps += [Rest(ms=dice.choice((50, 300, 900))), Say(loud_ms=400, quiet_ms=700, chunk_bytes=10_240)]
        if "resume" in self.on and dice.random() < 0.5:
            steps.append(Say(loud_ms=600, quiet_ms=600, chunk_bytes=320, pace=0))
        steps.append(Until(moment="done", limit_ms=2_000))
        if "compaction" in self.on:
            steps += [_SAID, Until(moment="done", limit_ms=2_000)]
        if dice.random() < 0.4:
            steps += [Reopen(), _SAID]
        return tuple(steps)

    def _hands(self) -> tuple[Step, ...]:
        dice = self.dice
        steps: list[Step] = []
        if self.manual:
            steps += [Rest(ms=700), Order(name="commit", pick=1), Rest(ms=dice.choice((20, 400)))]
            steps += [Order(name="create"), Rest(ms=500)]
        if "asides" in self.on:
            steps += [Rest(ms=dice.choice((100, 700))), Order(name="picture"), Order(name="create", pick=5)]
            steps += [Rest(ms=dice.choice((30, 300))), Order(name="create", pick=5), Order(name="create")]
        if "resume" in self.on:
            steps += [Rest(ms=dice.choice((600, 1_500))), Lose(how=dice.choice(("reset", "partial", "close")))]
            steps += [
                Rest(ms=dice.choice((20, 300))),
                Resume(how=dice.choice(("plain", "race", "behind"))),
                Rest(ms=200),
            ]
            steps += [Order(name="broken", pick=1)] * 24
            steps += [Deaf(ms=300), Resume(how="takeover")]
        if "library" in self.on:
            steps += [Rest(ms=dice.choice((900, 1_600))), Lose(how="reset"), Order(name="heartbeat"), Rest(ms=600)]
        return tuple(steps)

    def _bystander(self, deployment: int) -> Person:
        text = deployment == 1 or not self.resident
        return Person(
            name=WITNESS,
            deployment=deployment,
            choices=Choices(detection=None if text else "server_vad"),
            voice=_WRITTEN if text else (_SAID, Until(moment="done", limit_ms=2_000)),
        )

    def _latecomer(self) -> Person:
        return Person(
            name=LATECOMER,
            arrives_ms=LATE_MS,
            choices=Choices(detection="server_vad" if self.resident else None),
            voice=(_SAID, Until(moment="done", limit_ms=8_000)) if self.resident else _WRITTEN,
        )

    def _work(self) -> tuple[WorkFault, ...]:
        if "failures" not in self.on:
            return ()
        dice = self.dice
        return tuple(
            WorkFault(stage=stage, nth=dice.choice((1, 2)), how=dice.choice(("raise", "refuse", "misfit")))
            for stage in dice.sample(range(3), 2)
        )

    def _hooks(self) -> tuple[HookFault, ...]:
        if "failures" not in self.on or self.dice.random() < 0.4:
            return ()
        hook = self.dice.choice(("edge1", "edge2"))
        return (HookFault(hook=hook, nth=1, how=self.dice.choice(("lose", "misfit", "raise"))),)

    # -- what is there

    def _deployment(self) -> Deployment:
        dice, on = self.dice, self.on
        runtime: dict[str, int | float | str | None] = {
            "max_sessions": 1 if "queue" in on else 2,
            "disconnect_grace_s": 1.0,
            "reaper_interval_s": 0.5,
            "idle_ttl_s": 20.0,
            "submit_timeout_s": 2.0,
            "close_timeout_s": 2.0,
        }
        if "queue" in on:
            runtime |= {"max_waiting_sessions": 2, "max_wait_s": dice.choice((1.0, 20.0))}
        if on & {"failures", "calls"} and dice.random() < 0.3:
            runtime["control_timeout_s"] = 0.03
        if "asides" in on:
            runtime["tool_result_timeout_s"] = TIMEOUT_S
        if "rebuild" in on and dice.random() < 0.5:
            runtime |= {"replica_policy": "least_sessions", "max_sessions_per_replica": 2}
        return Deployment(
            family="resident" if self.resident else "ephemeral",
            replicas=2 if on & {"rebuild", "operations"} else 1,
            streams_input=dice.random() < 0.5,
            transcribes=dice.random() < 0.8,
            transit_ms=dice.choice((0, 1, 15)),
            think_ms=(5, 40),
            sentences=(1, 3),
            sentence_ms=(200, 700),
            detector=Detector(batched=True) if "detection" in on else Detector(delay_ms=dice.choice((0, 7))),
            runtime=runtime,
            limits={"max_local_frames": 4, "max_early_events": 2} if "resume" in on and dice.random() < 0.5 else {},
            tools="asides" in on,
            images="asides" in on,
            rebuilds="rebuild" in on,
            context_units=60 if "compaction" in on else 0,
            compacts="compaction" in on,
            prewarm="errands" in on and dice.random() < 0.6,
            load_ms=dice.choice((5, 200)) if on & {"start", "operations"} else 0,
            turns=self._turns() if "calls" in on else {},
        )

    def _turns(self) -> dict[str, int | float | None]:
        dice = self.dice
        limits: dict[str, int | float | None] = {"max_running": dice.choice((1, 2)), "keep_alive_s": 0.02}
        if dice.random() < 0.25:
            limits["write_timeout_s"] = 0.05
        if dice.random() < 0.2:
            limits |= {"pause_bytes": 1_000, "max_unread_bytes": 20_000}
        if dice.random() < 0.2:
            limits["max_body_bytes"] = 5_000
        return limits

    def _errands(self) -> tuple[Errand, ...]:
        if "errands" not in self.on:
            return ()
        dice = self.dice
        return tuple(
            Errand(
                name=f"errand{index}",
                at_ms=dice.choice((0, 300, 900)),
                pieces=dice.choice((1, 3)) if index else 1,
                gap_ms=dice.choice((0, 40)),
                abort_ms=dice.choice((None, 30, 200)) if index else None,
                companions=0 if index else 2,
                misfortune="none" if index else dice.choice(("none", "fails", "dropped")),
            )
            for index in range(2)
        )

    def _calls(self) -> tuple[Call, ...]:
        if "calls" not in self.on:
            return ()
        dice = self.dice
        first = self.number // len(THEMES)
        return tuple(
            Call(
                name=f"call{index}",
                at_ms=dice.choice((0, 0, 400)),
                kind=_CALLS[index],
                stream=(first + index) % 2 == 0,
                pieces=dice.choice((1, 3)),
                slow_ms=dice.choice((0, 10, 60)),
                leave_ms=dice.choice((None, None, None, None, 30, 300)),
                broken=dice.random() < 0.1,
            )
            for index in range(len(_CALLS))
        )

    def _operations(self) -> tuple[Operation, ...]:
        if "operations" not in self.on:
            return ()
        dice, stages = self.dice, self._stages()
        kinds: tuple[Literal["call", "register", "unregister"], ...] = ("call", "register", "unregister", "unregister")
        return tuple(
            Operation(stage=dice.randrange(stages), at_ms=dice.choice((100, 1_000, 1_400)), what=kind) for kind in kinds
        )

    def _deaths(self) -> tuple[Death, ...]:
        if not self.on & {"rebuild", "operations"} or self.dice.random() < 0.2:
            return ()
        stage = self.dice.randrange(self._stages())
        replica, at_ms = self.dice.randrange(2), self.dice.choice((500, 1_300, 1_700))
        return (Death(stage=stage, replica=replica, at_ms=at_ms, unsaid_ms=400 * (stage == 0)),)

    def _slow(self) -> tuple[ReplicaFault, ...]:
        """What goes between engine and replica takes its time, and with failures some of it fails."""
        dice = self.dice
        return tuple(
            ReplicaFault(
                stage=stage,
                operation=operation,
                nth=nth,
                how="raise" if operation == "start" else "refuse" if self._refused(operation) else "slow",
                ms=dice.choice((1, 10, 60)),
            )
            for stage in range(self._stages())
            for operation in ("submit", "update", "abort", "close", "start")
            for nth in range(1, 13)
            if dice.random() < (0.6 if operation != "start" else 0.15)
        )

    def _refused(self, operation: str) -> bool:
        return operation == "submit" and bool(self.on & {"failures", "errands"}) and self.dice.random() < 0.15

    def _stages(self) -> int:
        return 1 if self.resident else 3
