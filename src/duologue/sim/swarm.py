"""From a seed to a plan, swarm-style: each run switches a random part of the features on and draws from those alone.

Rules kept here: the seed decides everything; a feature that is off has no influence on what the others draw from their own
dice; plans are small, because many small runs find more than a few large ones.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final, get_args

import msgspec

from duologue.sim.misfortune import Misfortunes
from duologue.sim.plan import (
    AckStyle,
    Choices,
    Deployment,
    Detector,
    Errand,
    Family,
    Leave,
    Link,
    Order,
    Person,
    Plan,
    Reopen,
    ReplicaFault,
    Rest,
    Say,
    Step,
    ToolStyle,
    Until,
)
from duologue.sim.toolbox import TIMEOUT_S

FEATURES: Final[Mapping[str, float]] = {
    # who is there
    "crowd": 0.5,
    "library": 0.2,
    "ga": 0.2,
    "resident": 0.35,
    "two_models": 0.12,
    "errands": 0.2,
    # how they speak
    "interrupts": 0.5,
    "acknowledges": 0.3,
    "bursts": 0.25,
    "odd_chunks": 0.2,
    "big_chunks": 0.15,
    "formats": 0.2,
    "manual": 0.2,
    "semantic": 0.25,
    "patient": 0.15,
    "streaming": 0.35,
    "text": 0.1,
    "idle": 0.06,
    # what they send
    "orders": 0.5,
    "illegal": 0.25,
    "updates": 0.2,
    "items": 0.25,
    "cancels": 0.35,
    "stock": 0.2,
    "ack_styles": 0.4,
    # what goes wrong
    "loss": 0.3,
    "deaf": 0.15,
    "stall": 0.15,
    "kill": 0.08,
    "slow_link": 0.2,
    "small_window": 0.15,
    "leaves": 0.3,
    "work": 0.2,
    "hooks": 0.15,
    "replicas": 0.2,
    "deaths": 0.16,
    "detector": 0.12,
    "leaps": 0.08,
    "strikes": 0.1,
    "groups": 0.12,
    "shutdown": 0.08,
    "crash": 0.03,
    "tiny": 0.25,
    "few_slots": 0.15,
    "shuffle": 0.3,
    "slow_stages": 0.2,
    "weak_model": 0.15,
    "witness": 0.15,
    "rebuild": 0.4,
    "tools": 0.2,
    "queue": 0.25,
    "stuck": 0.04,
    "eager": 0.12,
    "images": 0.15,
    "compaction": 0.2,
    "full": 0.08,
    "lag": 0.15,
    "uneven": 0.16,
    "stubborn": 0.08,
    "hasty": 0.1,
}
NAMES: Final = ("ann", "bob", "cyd", "dot", "eve")

_CALM: Final = ("heartbeat", "retrieve", "commit", "input_commit", "create", "ack", "event_ack")
_CANCELS: Final = ("cancel", "cancel_named", "output_clear", "output_clear_old", "input_cancel", "barge_in", "clear")
_ITEMS: Final = ("item", "item", "delete", "retrieve", "truncate", "truncate")
_PICTURES: Final = ("picture", "picture", "picture", "create", "retrieve", "delete")
_ILLEGAL: Final = ("broken", "broken", "bad_update", "text", "late_resume", "wrong_ack", "again", "signal")


class Swarm:
    """One seed's choices."""

    def __init__(self, seed: int, *, also: frozenset[str] = frozenset()) -> None:
        self.seed = seed
        dice = random.Random(f"features:{seed}")
        self.on = frozenset(name for name, chance in FEATURES.items() if dice.random() < chance) | also

    def dice(self, name: str) -> random.Random:
        """Dice of one purpose."""
        return random.Random(f"{self.seed}:{name}")

    def plan(self) -> Plan:
        """The plan of this seed."""
        on = self.on
        dice = self.dice("plan")
        count = 1 + (dice.choice((1, 1, 2, 3)) if on & {"crowd", "witness", "queue"} else 0)
        deployments = [self._deployment(index) for index in range(2 if "two_models" in on else 1)]
        people = [self._person(index, deployments) for index in range(count)]
        witness = ""
        if "witness" in on and count > 1:
            witness = people[0].name
            people[0] = self._calm(people[0])
        plan = Plan(
            seed=self.seed,
            shuffle="shuffle" in on and not witness,
            deployments=tuple(deployments),
            people=tuple(people),
            errands=self._errands(deployments),
            witness=witness,
            keeps=tuple(sorted(on)),
        )
        plan = Misfortunes(self.dice("misfortune"), on).befall(plan)
        return self._stuck(plan) if "stuck" in on and not witness else plan

    def _stuck(self, plan: Plan) -> Plan:
        """A stage takes no abort any more, and somebody leaves in the middle of an answer: his slot stays taken."""
        dice = self.dice("stuck")
        stage = 0 if plan.deployments[0].family == "resident" else dice.choice((0, 1, 2))
        faults = tuple(ReplicaFault(stage=stage, operation="abort", nth=nth, how="hang") for nth in range(1, 9))
        leaver = plan.people[0]
        voice = (*leaver.voice, Say(loud_ms=600, quiet_ms=900), Until(moment=dice.choice(("created", "audio"))))
        leaver = msgspec.structs.replace(leaver, deployment=0, voice=voice, leave="close")
        return msgspec.structs.replace(
            plan, people=(leaver, *plan.people[1:]), replica_faults=(*plan.replica_faults, *faults)
        )

    # -- deployments

    def _deployment(self, index: int) -> Deployment:
        on, dice = self.on, self.dice(f"deployment:{index}")
        family: Family = "resident" if ("resident" in on) != (index == 1) else "ephemeral"
        slow = "slow_stages" in on
        weak = "weak_model" in on
        tools = "tools" in on or (family == "resident" and self.dice(f"calls:{index}").random() < 0.25)
        plain = Deployment(
            family=family,
            replicas=dice.choice((1, 1, 2, 3)),
            streams_input="streaming" in on,
            text_turns=not (weak and dice.random() < 0.5),
            barge_in=not (weak and dice.random() < 0.5),
            transcribes=not (weak and dice.random() < 0.5),
            client_commit=family == "resident" and dice.random() < 0.4,
            unit_ms=dice.choice((80, 80, 200, 1000, 0)) if family == "resident" else 80,
            silence_units=dice.choice((64, 8, 8, 2)),
            think_ms=dice.choice(((100, 900), (0, 3000))) if slow else dice.choice(((10, 60), (0, 0), (0, 20))),
            sentences=dice.choice(((1, 1), (1, 3), (2, 5))),
            sentence_ms=dice.choice(((1, 100), (120, 900), (400, 2500))),
            chunk_ms=400 if slow else dice.choice((100, 100, 20, 73, 400)),
            transit_ms=dice.choice((0, 0, 0, 5, 40)),
            detector=self._detector(dice),
            runtime=self._runtime(dice) | ({"tool_result_timeout_s": TIMEOUT_S} if tools else {}) | self._rare(index),
            limits=self._limits(dice),
            rebuilds="rebuild" in on and family == "resident",
            tools=tools,
            images="images" in on and family == "ephemeral",
        )
        return msgspec.structs.replace(plain, **self._peculiar(index, family))

    def _peculiar(self, index: int, family: Family) -> dict[str, Any]:
        """Peculiarities with dice of their own: long ways, words that are slower than their sound, contexts that fill."""
        on, dice = self.on, self.dice(f"peculiar:{index}")
        given: dict[str, Any] = {}
        if "lag" in on:
            given["lag_ms"] = dice.choice((5, 40, 150))
        if "uneven" in on and family == "ephemeral":
            given |= {"think_ms": (0, 10), "answer_ms": dice.choice(((100, 500), (300, 1_200)))}
            given |= {"sentences": (3, 6), "sentence_ms": (400, 2_000)}
        if family == "resident" and (on & {"compaction", "full"} or self.dice(f"fills:{index}").random() < 0.2):
            given |= {
                "context_units": dice.choice((24, 24, 40, 80)),
                "compacts": "compaction" in on or "full" not in on,
            }
        talk = self.dice(f"acknowledged:{index}")
        if family == "ephemeral" and "acknowledges" in on and talk.random() < 0.5:
            # Its words are known while it lasts, and the answer lasts longer.
            given |= {"streams_input": True, "barge_in": True, "transcribes": True}
            given |= {"sentences": (1, 3), "sentence_ms": talk.choice(((700, 2_000), (900, 2_500)))}
        return given

    def _rare(self, index: int) -> dict[str, int | float | str | None]:
        """Settings of single features, with dice of their own."""
        on, dice = self.on, self.dice(f"rare:{index}")
        settings: dict[str, int | float | str | None] = {}
        if "hasty" in on:
            settings |= {"turn_burst": dice.choice((1, 2)), "turns_per_minute": dice.choice((6, 30))}
        if "images" in on:
            item, session = {"max_image_bytes_per_item": 70}, {"max_image_bytes_per_session": 90}
            settings |= dice.choice(({}, item, item, session))
        if "uneven" in on:
            settings["max_backlog_ms"] = dice.choice((300, 1_000))
        return settings

    def _detector(self, dice: random.Random) -> Detector:
        if "detector" not in self.on:
            return Detector()
        some = tuple(sorted(dice.sample(range(1, 60), dice.choice((0, 0, 1, 2)))))
        judged = tuple(sorted(dice.sample(range(1, 5), dice.choice((0, 1)))))
        fixed = "witness" in self.on
        delay_ms = dice.choice((0, 5, 40, 300))
        return Detector(delay_ms=delay_ms, fails=() if fixed else some, judge_fails=() if fixed else judged)

    def _runtime(self, dice: random.Random) -> dict[str, int | float | str | None]:
        settings: dict[str, int | float | str | None] = {
            "max_sessions": dice.choice((1, 2, 3)) if "few_slots" in self.on and "witness" not in self.on else 8,
            "idle_ttl_s": dice.choice((20.0, 45.0)),
            "disconnect_grace_s": dice.choice((0.0, 3.0, 10.0)),
            "reaper_interval_s": dice.choice((1.0, 5.0)),
            "close_timeout_s": dice.choice((1.0, 5.0)),
            "submit_timeout_s": dice.choice((2.0, 30.0)),
            "control_timeout_s": dice.choice((2.0, 10.0)),
            "send_ahead_ms": dice.choice((400, 400, 100, None)),
        }
        if "groups" in self.on:
            settings["replica_policy"] = "least_sessions"
            settings["max_sessions_per_replica"] = dice.choice((1, 2, 8)) if "witness" not in self.on else 8
        if "queue" in self.on:
            room = self.dice("queue")
            if "witness" not in self.on and room.random() < 0.6:
                settings["max_sessions"] = room.choice((1, 1, 2))
            settings |= {"max_waiting_sessions": room.choice((1, 2, 8)), "max_wait_s": room.choice((1.0, 20.0))}
        if "tiny" in self.on:
            tight: dict[str, tuple[int, ...]] = {
                "max_pending_input_bytes_per_session": (8_000, 40_000, 120_000),
                "max_pending_turns_per_session": (1, 2),
                "max_pending_output_bytes_per_session": (8_000, 30_000),
                "max_pending_output_events_per_session": (12, 40),
                "max_items_per_session": (2, 6),
                "max_history_chars": (60, 400),
                "max_backlog_ms": (300, 2_000),
                "max_turn_ms": (700, 3_000),
                "starvation_ms": (100, 600),
            }
            for name in dice.sample(sorted(tight), dice.randint(1, 4)):
                settings[name] = dice.choice(tight[name])
        return settings

    def _limits(self, dice: random.Random) -> dict[str, int | float]:
        settings: dict[str, int | float] = {"close_timeout_s": dice.choice((1.0, 5.0))}
        if "tiny" in self.on:
            tight: dict[str, tuple[int | float, ...]] = {
                "journal_bytes": (2_000, 20_000),
                "journal_ttl_s": (1.0, 5.0),
                "max_early_events": (1, 4),
                "max_local_frames": (2, 8),
                "max_event_bytes": (4_000, 60_000),
                "first_message_timeout_s": (0.5, 2.0),
            }
            for name in dice.sample(sorted(tight), dice.randint(0, 3)):
                settings[name] = dice.choice(tight[name])
        journal = self.dice("journal")
        if "loss" in self.on and journal.random() < 0.15:
            settings["journal_bytes"] = journal.choice((1_000, 4_000))
        return settings

    # -- people

    def _person(self, index: int, deployments: list[Deployment]) -> Person:
        on, name = self.on, NAMES[index]
        dice = self.dice(f"person:{name}")
        home = dice.randrange(len(deployments))
        library = "library" in on and dice.random() < 0.6
        ga = "ga" in on and dice.random() < 0.6
        leave: Leave = dice.choice(("close", "hang_up", "vanish", "stay")) if "leaves" in on else "close"
        styles: tuple[AckStyle, ...] = ("prompt", "late", "wrong", "never")
        return Person(
            name=name,
            deployment=home,
            library=library,
            dialect="ga" if ga else "duplex",
            arrives_ms=0 if index == 0 else dice.choice((0, 0, 300, 2_000)),
            choices=self._choices(dice, deployments[home], index, ga=ga),
            link=self._link(dice, self.dice(f"way:{name}")),
            acks=dice.choice(styles) if "ack_styles" in on else "prompt",
            event_acks=dice.random() < 0.8,
            ack_events=self.dice(f"journal:{name}").choice((16, 16, 5, 1)) if "loss" in on else 16,
            truncates="stock" in on and dice.random() < 0.7,
            eager="eager" in on and self.dice(f"eager:{name}").random() < 0.7,
            voice=(*self._voice(self.dice(f"voice:{name}"), deployments[home]), *self._acknowledged(name)),
            hands=(*self._hands(self.dice(f"hands:{name}")), *self._again(self.dice(f"again:{name}"))),
            leave="close" if leave == "stay" and library else leave,
        )

    def _calm(self, person: Person) -> Person:
        return msgspec.structs.replace(person, leave="close", arrives_ms=0)

    def _choices(self, dice: random.Random, deployment: Deployment, index: int, *, ga: bool) -> Choices:
        on = self.on
        manual = "manual" in on and dice.random() < 0.6
        semantic = "semantic" in on and dice.random() < 0.6
        strange = "formats" in on and dice.random() < 0.7
        given: dict[str, Any] = {
            "modality": "text" if "text" in on and dice.random() < 0.7 else "audio",
            "detection": None if manual else "semantic_vad" if semantic else "server_vad",
            "silence_ms": dice.choice((500, 500, 200, 64)),
            "idle_ms": dice.choice((1_000, 4_000)) if "idle" in on else None,
            "create_response": dice.random() < 0.85,
            "interrupt": not ("patient" in on and dice.random() < 0.7),
            "transcription": dice.random() < 0.85,
            "input_rate_hz": 24_000 if ga and dice.random() < 0.5 else 16_000,
        }
        if strange:
            name = dice.choice(("pcm16", "float32", "pcmu", "pcma"))
            given["input_format"] = name
            given["input_rate_hz"] = (
                8_000 if name.startswith("pcm") and name != "pcm16" else dice.choice((8_000, 24_000))
            )
            given["output_format"] = dice.choice(("pcm16", "pcmu", "pcma"))
            given["output_rate_hz"] = (
                8_000 if given["output_format"] != "pcm16" else dice.choice((16_000, 24_000, 48_000))
            )
        if not ga:
            given["playback"] = dice.choice(("estimated", "estimated", "ack_only", "commit_all_on_done"))
            given["auto_response"] = deployment.family == "resident" and dice.random() < 0.5
        if deployment.tools:
            given["tools"] = self.dice(f"tools:{index}").choice(get_args(ToolStyle))
        return Choices(**given)

    def _link(self, dice: random.Random, way: random.Random) -> Link:
        on = self.on
        slow = "slow_link" in on
        delay_ms = dice.choice((20, 80, 400)) if slow else dice.choice((0, 0, 1))
        if "loss" in on and not slow and way.random() < 0.4:
            delay_ms = way.choice((5, 20, 80))  # so that something is on its way when the connection is lost
        return Link(
            delay_ms=delay_ms,
            jitter_ms=dice.choice((0, 5, 200)) if slow else 0,
            window_bytes=dice.choice((500, 4_000)) if "small_window" in on else 32_768,
            read_bytes_per_s=dice.choice((0, 20_000, 200_000)) if "small_window" in on else 0,
        )

    def _voice(self, dice: random.Random, deployment: Deployment) -> tuple[Step, ...]:
        on = self.on
        steps: list[Step] = []
        for _ in range(dice.randint(1, 4)):
            steps.append(self._say(dice))
            if "manual" in on and dice.random() < 0.6:
                steps.append(Order(name=dice.choice(("commit", "input_commit", "commit")), pick=dice.randrange(8)))
                if dice.random() < 0.4:
                    steps.append(Order(name="create", pick=dice.randrange(8)))
            roll = dice.random()
            if roll < 0.45:
                steps.append(Until(moment="done", limit_ms=dice.choice((3_000, 8_000))))
            elif roll < 0.75 and "interrupts" in on:
                steps.append(Until(moment=dice.choice(("created", "audio")), limit_ms=3_000))
                if dice.random() < 0.5:
                    steps.append(Rest(ms=dice.choice((10, 200, 700))))
            elif roll < 0.85:
                steps.append(Rest(ms=dice.choice((100, 1_500, 4_000))))
        return tuple(steps)

    def _acknowledged(self, name: str) -> tuple[Step, ...]:
        """A question, and something in the middle of its answer that is not to stop it."""
        dice = self.dice(f"acknowledged:{name}")
        if "acknowledges" not in self.on or dice.random() < 0.65:
            return ()
        answer = Until(moment="audio", limit_ms=3_000)
        rest = Rest(ms=dice.choice((10, 200, 400)))
        said = Say(loud_ms=dice.choice((200, 300, 400)), quiet_ms=900, voice="ack")
        return (Say(loud_ms=600, quiet_ms=700), answer, rest, said, Until(moment="done", limit_ms=3_000))

    def _say(self, dice: random.Random) -> Say:
        on = self.on
        ack = "acknowledges" in on and dice.random() < 0.4
        chunk = 2_560
        pace = 100
        if "odd_chunks" in on:
            chunk = dice.choice((1, 7, 101, 641, 1_023, 2_560))
        if "big_chunks" in on and dice.random() < 0.5:
            chunk = dice.choice((32_000, 160_000))
        if "bursts" in on or ("compaction" in on and dice.random() < 0.4):
            pace = dice.choice((0, 0, 20, 100, 130))
        loud_ms = dice.choice((300, 500)) if ack else dice.choice((40, 300, 600, 1_200))
        return Say(
            loud_ms=loud_ms,
            quiet_ms=dice.choice((0, 250, 700, 900, 1_600)),
            chunk_bytes=chunk,
            pace=pace,
            voice="ack" if ack else "plain",
        )

    def _hands(self, dice: random.Random) -> tuple[Step, ...]:
        on = self.on
        names: list[str] = []
        names += _CALM if "orders" in on else ()
        names += _CANCELS if "cancels" in on else ()
        names += _ITEMS if "items" in on else ()
        names += _PICTURES if "images" in on else ()
        names += _ILLEGAL if "illegal" in on else ()
        names += ("update", "update", "bad_update") if "updates" in on else ()
        steps: list[Step] = []
        for _ in range(dice.randint(1, 7) if names else 0):
            roll = dice.random()
            if roll < 0.35:
                steps.append(Until(moment=dice.choice(("audio", "created", "done")), limit_ms=3_000))
            elif roll < 0.9:
                steps.append(Rest(ms=dice.choice((1, 50, 333, 900, 1_700))))
            steps.append(Order(name=dice.choice(names), pick=dice.randrange(64)))
        if "close" not in names and names and dice.random() < 0.05:
            steps.append(Order(name="close"))
        return tuple(steps)

    def _again(self, dice: random.Random) -> tuple[Step, ...]:
        """Somebody ends his session and wants another one at once, while others may be waiting."""
        if "queue" not in self.on or "witness" in self.on or dice.random() < 0.5:
            return ()
        rest = Rest(ms=dice.choice((100, 900, 2_500)))
        return (rest, Order(name="close"), Until(moment="terminal", limit_ms=5_000), Reopen())

    # -- errands

    def _errands(self, deployments: list[Deployment]) -> tuple[Errand, ...]:
        if "errands" not in self.on:
            return ()
        dice = self.dice("errands")
        found: list[Errand] = []
        for number in range(dice.randint(1, 3)):
            home = dice.randrange(len(deployments))
            family = deployments[home].family
            found.append(
                Errand(
                    name=f"errand{number}",
                    deployment=home,
                    at_ms=dice.choice((0, 500, 1_500)),
                    pieces=dice.choice((1, 1, 3)),
                    gap_ms=dice.choice((0, 40, 400)),
                    abort_ms=dice.choice((None, None, 0, 100, 600)),
                    entry=dice.choice((0, 0, 1)) if family == "ephemeral" else 0,
                )
            )
        return tuple(found)


def draw(seed: int, also: frozenset[str] = frozenset()) -> Plan:
    """The plan of a seed; ``also`` names features that are on whatever the seed says, which makes it another plan."""
    return Swarm(seed, also=also).plan()
