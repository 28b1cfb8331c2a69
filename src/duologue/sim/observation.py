"""What stages and the engine's outside could see in a run: the evidence that checkers judge.

Rules kept here: nothing in here changes the system; what a stage made counts as made when its replica hands it to the
engine, what it was fed counts when stage code gets it.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

import msgspec

from duologue.engine.duplex.commands import DuplexCommand
from duologue.engine.duplex.contracts import DuplexFence
from duologue.engine.duplex.events import SessionEvent
from duologue.engine.duplex.plugin import AppendPlanRequest
from duologue.ids import parse_stage_request_id
from duologue.outputs import RequestOutput, StagePrompt
from duologue.sim.sample import Sample
from duologue.sim.tape import cut
from duologue.sim.trace import Trace


class Fed(msgspec.Struct, frozen=True, gc=False):
    """One piece of input, as stage code got it."""

    at: float
    stage: int
    request_id: str
    client: str
    prompt: StagePrompt


class Made(msgspec.Struct, frozen=True, gc=False):
    """One output, as its replica handed it to the engine."""

    at: float
    stage: int
    request_id: str
    output: RequestOutput


class Planned(msgspec.Struct, frozen=True, gc=False):
    """One append that the plugin was asked to plan; ``accepted`` when the stage took it."""

    at: float
    session_id: str
    request_id: str
    fence: DuplexFence
    seq: int
    turn_seq: int
    audio: bytes
    final: bool
    silence: bool
    accepted: bool
    instructions: str
    compact: bool


class Told(msgspec.Struct, frozen=True, gc=False):
    """One event of a session as it left the engine."""

    at: float
    number: int
    event: SessionEvent


@dataclass(slots=True)
class Admission:
    """One attempt to open a session at the engine, and the slots held as its outside could count them.

    ``number`` counts them; ``queued``: it was told to wait; ``answered``: when it was admitted or ``refused``.
    """

    at: float
    session_id: str
    held: int
    number: int = 0
    refused: str | None = None
    queued: bool = False
    answered: float | None = None


@dataclass(slots=True)
class Observations:
    """The evidence of one deployment."""

    trace: Trace
    prefix: str
    key_of_session: dict[str, str] = field(default_factory=dict)
    input: list[Fed] = field(default_factory=list)
    output: list[Made] = field(default_factory=list)
    planned: list[Planned] = field(default_factory=list)
    told: dict[str, list[Told]] = field(default_factory=dict)
    commands: dict[str, list[tuple[float, DuplexCommand]]] = field(default_factory=dict)  # what the server passed on
    invalidated: dict[str, list[tuple[float, str]]] = field(default_factory=dict)
    admissions: list[Admission] = field(default_factory=list)
    failed: list[tuple[float, str]] = field(default_factory=list)  # requests on which a plugin hook raised
    refused: list[tuple[int, str]] = field(
        default_factory=list
    )  # how much was planned when the first stage took no piece
    deaths: list[tuple[float, frozenset[str]]] = field(
        default_factory=list
    )  # noticed ones, and what replicas held then
    lost: list[tuple[int, frozenset[str]]] = field(
        default_factory=list
    )  # how much was planned at a death, what was held
    errands: dict[str, list[tuple[float, str, RequestOutput | None]]] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)  # operations, by control id: a repeated one is answered again
    answers: dict[str, int] = field(default_factory=dict)
    control_sessions: dict[str, str] = field(default_factory=dict)  # of operations that open
    samples: list[Sample] = field(default_factory=list)  # what the engine declared of itself, and when
    _offsets: dict[str, int] = field(default_factory=dict)

    def client_of(self, request_id: str) -> str:
        """Who a stage request works for: a client's name, or the errand's."""
        parsed = parse_stage_request_id(request_id)
        if parsed is None:
            return request_id
        return self.key_of_session.get(parsed.session_id, "?")

    def next_audio(self, client: str, samples: int) -> bytes:
        """Fresh audio for an answer to ``client``."""
        offset = self._offsets.get(client, 0)
        self._offsets[client] = offset + samples
        return cut("answer", offset, samples)

    def fed(self, fed: Fed) -> None:
        """Stage code got a piece."""
        self.input.append(fed)
        prompt = fed.prompt
        size = f"{len(prompt.audio)} bytes" if prompt.audio else repr(prompt.text)
        self.trace.note(f"{self.prefix}{fed.stage}", "fed", f"{fed.client} {size}{' final' if prompt.final else ''}")

    def made(self, stage: int, output: RequestOutput) -> None:
        """A replica handed an output to the engine."""
        made = Made(self.trace.now(), stage, output.request_id, output)
        self.output.append(made)
        end = " finished" if output.finished else ""
        end = f" error {output.error.code}" if output.error is not None else end
        text = f"{self.client_of(output.request_id)} {len(output.audio)} bytes {output.text!r}{end}"
        self.trace.note(f"{self.prefix}{stage}", "made", text)

    def plan(self, request: AppendPlanRequest, *, accepted: bool) -> None:
        """The plugin is asked to plan an append, or told that its stage took it."""
        self.planned.append(
            Planned(
                self.trace.now(),
                request.session_id,
                request.request_id,
                request.fence,
                request.seq,
                request.turn_seq,
                request.audio,
                request.final,
                request.silence,
                accepted,
                request.instructions,
                request.compact,
            )
        )

    def errand(self, name: str, what: str, output: RequestOutput | None) -> None:
        """An ordinary request was answered."""
        self.errands.setdefault(name, []).append((self.trace.now(), what, output))
        said = "" if output is None else f" {output.text!r} {zlib.crc32(output.audio):08x}"
        self.trace.note(name, "answer", f"{what}{said}")

    def event(self, session_id: str, number: int, event: SessionEvent) -> None:
        """A session said something."""
        self.told.setdefault(session_id, []).append(Told(self.trace.now(), number, event))
