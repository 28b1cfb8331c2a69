"""One run as data: who does what, and what goes wrong. A plan can be kept, cut down and run again.

Rules kept here: a plan holds everything that differs between two runs; it is plain data that JSON can carry; times are
milliseconds of virtual time, counted from the beginning of the run or of the step before.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Family = Literal["ephemeral", "resident"]
Dialect = Literal["duplex", "ga"]
Voice = Literal["plain", "ack"]
Moment = Literal["open", "created", "audio", "done", "terminal", "updated"]
Loss = Literal["reset", "partial", "half_open", "close"]
Return = Literal["plain", "race", "old_token", "wrong_token", "ahead", "behind", "acked", "takeover"]
AckStyle = Literal["prompt", "late", "wrong", "never"]
Leave = Literal["close", "hang_up", "vanish", "stay"]
RuntimeValue = int | float | str | None
Mishap = Literal["raise", "refuse", "slow", "hang", "lose", "double", "late", "foreign", "misfit"]


class _Step(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    pass


class Say(_Step, frozen=True, kw_only=True, omit_defaults=True):
    """Speak for ``loud_ms``, then be quiet for ``quiet_ms``, in appends of ``chunk_bytes``.

    ``pace`` is percent of real time that passes per append: 100 as spoken, 0 all at once.
    """

    loud_ms: int = 600
    quiet_ms: int = 700
    chunk_bytes: int = 2560
    pace: int = 100
    voice: Voice = "plain"


class Rest(_Step, frozen=True, kw_only=True, omit_defaults=True):
    """Do nothing, and send nothing."""

    ms: int


class Until(_Step, frozen=True, kw_only=True, omit_defaults=True):
    """Wait for the next event of a kind, but not longer than ``limit_ms``."""

    moment: Moment
    limit_ms: int = 5_000


class Order(_Step, frozen=True, kw_only=True, omit_defaults=True):
    """Send one command, well-formed or not; ``pick`` chooses among its variants. See :mod:`duologue.sim.orders`."""

    name: str
    pick: int = 0


class Lose(_Step, frozen=True, kw_only=True, omit_defaults=True):
    """Lose the connection."""

    how: Loss


class Resume(_Step, frozen=True, kw_only=True, omit_defaults=True):
    """Take the session up again, in one of several right or wrong ways."""

    how: Return = "plain"


class Deaf(_Step, frozen=True, kw_only=True, omit_defaults=True):
    """Stop reading from the socket for a while."""

    ms: int


class Stall(_Step, frozen=True, kw_only=True, omit_defaults=True):
    """Nothing gets through in either direction for a while; nothing is lost."""

    ms: int


class Kill(_Step, frozen=True, kw_only=True, omit_defaults=True):
    """The server's task of this connection is cancelled."""


class Reopen(_Step, frozen=True, kw_only=True, omit_defaults=True):
    """If the session has ended, open another one at once."""


Step = Say | Rest | Until | Order | Lose | Resume | Deaf | Stall | Kill | Reopen


class Link(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A client's network: delays each way, how much may be unread, how fast the client reads (0: at once), and how long it
    takes either side to hand a frame over."""

    delay_ms: int = 0
    jitter_ms: int = 0
    window_bytes: int = 32_768
    read_bytes_per_s: int = 0
    slow_ms: int = 0


ToolStyle = Literal["off", "once", "twice", "late", "never", "again", "mixed"]
"""How often, and when, a client answers the function calls of a model; ``off``: it offers no function."""


class Choices(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Session settings a client asks for when it opens."""

    modality: Literal["audio", "text"] = "audio"
    detection: Literal["server_vad", "semantic_vad"] | None = "server_vad"
    silence_ms: int = 500
    idle_ms: int | None = None
    create_response: bool = True
    interrupt: bool = True
    input_format: str = "pcm16"
    input_rate_hz: int = 16_000
    output_format: str = "pcm16"
    output_rate_hz: int = 24_000
    playback: Literal["estimated", "ack_only", "commit_all_on_done"] = "estimated"
    auto_response: bool = False
    transcription: bool = True
    tools: ToolStyle = "off"


class HookFault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The ``nth`` call of a plugin hook (or edge) on behalf of a client raises, or returns nonsense (``misfit``)."""

    hook: str
    nth: int
    how: Mishap = "raise"


class WorkFault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A client's ``nth`` request at a stage goes wrong inside stage code."""

    stage: int
    nth: int
    how: Mishap
    ms: int = 0


class Person(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One client. ``voice`` and ``hands`` run side by side, each step after the one before."""

    name: str
    deployment: int = 0
    library: bool = False
    dialect: Dialect = "duplex"
    arrives_ms: int = 0
    choices: Choices = Choices()
    link: Link = Link()
    acks: AckStyle = "prompt"
    event_acks: bool = True
    ack_events: int = 16  # every so many of them
    truncates: bool = False  # when it hears that the user speaks, as stock clients do
    eager: bool = False  # speaks before it knows that there is a session
    voice: tuple[Step, ...] = ()
    hands: tuple[Step, ...] = ()
    leave: Leave = "close"
    hooks: tuple[HookFault, ...] = ()
    work: tuple[WorkFault, ...] = ()


class Errand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An ordinary request beside the sessions. ``pieces`` more than one: a streaming one."""

    name: str
    deployment: int = 0
    at_ms: int
    pieces: int = 1
    gap_ms: int = 50
    text: str = "an errand"
    abort_ms: int | None = None
    entry: int = 0
    companions: int = 0  # requests beside it that its second stage waits for
    misfortune: Literal["none", "fails", "dropped"] = "none"  # of its first companion


CallKind = Literal["chat", "spoken_chat", "heard_chat", "speech", "transcription"]


class Call(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An HTTP request at the server: its body in ``pieces`` that come ``gap_ms`` apart.

    ``slow_ms`` is what the connection needs for each piece of the answer; ``leave_ms`` after the beginning the client goes
    away. ``broken``: the body is none.
    """

    name: str
    deployment: int = 0
    at_ms: int
    kind: CallKind
    stream: bool = False
    pieces: int = 1
    gap_ms: int = 20
    slow_ms: int = 0
    leave_ms: int | None = None
    broken: bool = False


class Operation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that an operator does to the replicas of a stage: call into them, add one, take the first one out."""

    deployment: int = 0
    stage: int = 0
    at_ms: int
    what: Literal["call", "register", "unregister"]


class ReplicaFault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The ``nth`` operation of a kind at any replica of a stage goes wrong on its way, and ``times`` in all do in a row."""

    deployment: int = 0
    stage: int = 0
    operation: Literal["submit", "update", "abort", "output", "start", "close"]
    nth: int
    how: Mishap
    ms: int = 0
    times: int = 1


class Death(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A replica dies with everything that it ran. For ``unsaid_ms`` it refuses what it is given, before it is told dead."""

    deployment: int = 0
    stage: int = 0
    replica: int = 0
    at_ms: int
    unsaid_ms: int = 0


class Leap(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The whole process stands still for ``by_ms``; or only the wall clock jumps by so much (may be negative)."""

    at_ms: int
    by_ms: int
    wall: bool = False


class Strike(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """From ``at_ms`` on the ``nth`` task that begins with a name of this kind is cancelled ``turns`` turns later."""

    at_ms: int
    kind: str
    nth: int = 0
    turns: int = 0


class Shutdown(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The server drains and stops; ``crash``: the engine fails."""

    deployment: int = 0
    at_ms: int
    crash: bool = False


class Detector(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``delay_ms`` per verdict; the request with a number in ``fails`` fails, ``judge_fails`` likewise.

    ``batched``: the engine's own service, which scores many sessions at once away from the loop, without a delay.
    """

    delay_ms: int = 0
    batched: bool = False
    fails: tuple[int, ...] = ()
    judge_fails: tuple[int, ...] = ()


class Deployment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One engine with its server. Times of stage code are ranges that each request draws from.

    ``answer_ms``: what the words of an answer take, if that is not ``think_ms``. ``lag_ms``: what the way to a replica takes.
    ``context_units``: how much fits into a resident model's context (0: no end); ``compacts``: it can be rolled over.
    """

    family: Family = "ephemeral"
    replicas: int = 1
    streams_input: bool = False
    text_turns: bool = True
    barge_in: bool = True
    transcribes: bool = True
    client_commit: bool = False
    unit_ms: int = 80
    silence_units: int = 64
    think_ms: tuple[int, int] = (10, 60)
    sentences: tuple[int, int] = (1, 3)
    sentence_ms: tuple[int, int] = (120, 900)
    chunk_ms: int = 100
    transit_ms: int = 0
    answer_ms: tuple[int, int] | None = None
    lag_ms: int = 0
    context_units: int = 0
    compacts: bool = False
    images: bool = False
    detector: Detector = Detector()
    tools: bool = False
    runtime: dict[str, RuntimeValue] = {}
    limits: dict[str, int | float] = {}
    rebuilds: bool = False  # a resident model's sessions survive the loss of a replica
    prewarm: bool = False  # later stages are opened before their input exists
    load_ms: int = 0  # what a replica needs to start, and to stop; clients may come earlier
    turns: dict[str, int | float | None] = {}  # limits of HTTP requests


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything about one run. ``keeps`` names the features that the swarm switched on."""

    seed: int
    shuffle: bool = False
    deployments: tuple[Deployment, ...] = (Deployment(),)
    people: tuple[Person, ...] = ()
    errands: tuple[Errand, ...] = ()
    calls: tuple[Call, ...] = ()
    operations: tuple[Operation, ...] = ()
    replica_faults: tuple[ReplicaFault, ...] = ()
    deaths: tuple[Death, ...] = ()
    leaps: tuple[Leap, ...] = ()
    shutdowns: tuple[Shutdown, ...] = ()
    strikes: tuple[Strike, ...] = ()
    witness: str = ""
    keeps: tuple[str, ...] = ()

    @property
    def disturbed(self) -> bool:
        """Whether something goes wrong that is not one client's own."""
        return bool(self.replica_faults or self.deaths or self.leaps or self.shutdowns or self.strikes)


def to_json(plan: Plan) -> bytes:
    """The plan as JSON, without what is at its default."""
    return msgspec.json.format(msgspec.json.encode(plan), indent=1)


def from_json(text: bytes | str) -> Plan:
    """The plan that :func:`to_json` wrote. Raises ``msgspec.ValidationError`` naming what is wrong."""
    return msgspec.json.decode(text, type=Plan)
