"""Feeding: what the model was fed is what the client sent, minus what a rule discarded (B9, B10).

Samples are compared one by one where the client's format is the model's. A boundary of what was fed may lie anywhere in
silence, to a frame of the detector, but in the middle of speech only where a command or a limit put it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from duologue.engine.duplex.commands import (
    AckPlayback,
    AppendAudio,
    AppendText,
    BargeIn,
    CancelInput,
    CancelResponse,
    ClearAudio,
    ClearOutput,
    CloseSession,
    CommitAudio,
    CreateItem,
    CreateResponse,
    DuplexCommand,
    Heartbeat,
    RetrieveItem,
    SignalTurn,
    TruncateItem,
    UpdateSession,
)
from duologue.engine.duplex.events import (
    ErrorRaised,
    InputCommitted,
    ItemDeleted,
    OverlapDecided,
    SessionCreated,
    SessionUpdated,
)
from duologue.sim.checkers.evidence import Evidence, SessionEvidence, Violation, by_request
from duologue.sim.conversation import Conversation
from duologue.sim.plan import Order, Person, Say
from duologue.sim.tape import LOUD
from duologue.wire import server_events as wire

_INPUT_ORDERS = frozenset(
    {"commit", "input_commit", "clear", "input_cancel", "barge_in", "signal", "update", "bad_update", "broken", "again"}
)
_ENDS_INPUT = (CommitAudio, ClearAudio, BargeIn, CancelInput, CloseSession)
_LEAVES_INPUT = (
    AckPlayback,
    CancelResponse,
    ClearOutput,
    CloseSession,
    CreateResponse,
    UpdateSession,
    CreateItem,
    RetrieveItem,
    TruncateItem,
    Heartbeat,
    AppendText,
    CommitAudio,
)
_TAKES_INPUT = (CommitAudio, ClearAudio, BargeIn, CancelInput, SignalTurn)
MAX_TURNS = 8
_PADDING = b"\0" * 8
_HEAD_BYTES = 64
SHORT_BYTES = 64  # as much stands somewhere by accident
_LONG_SAMPLES = 16 * 250  # a stretch of speech that no detector overlooks
_FRAME_SAMPLES = (
    512  # the detector hears frames: the last of a stretch may be silence for the most part, and counts as that
)


def check(evidence: Evidence) -> Iterator[Violation]:
    """Every session whose samples can be compared."""
    for session in evidence.sessions():
        if not as_sent(session) or was_refused(session):
            continue
        commands = [command for _, command in session.commands]
        stream = stream_of(commands)
        turns = _turns(session, stream)
        yield from pieces(session, stream, session.name, turns)
        talk = session.talk
        if talk is None or session.person is None:
            continue
        yield from _passed_on(
            session, talk, [command.audio for command in commands if isinstance(command, AppendAudio)]
        )
        if evidence.calm and _plain(session, session.person, talk):
            yield from _speech(session, turns, stream, talk.name)


class _Turn(NamedTuple):
    """What one request was fed, and where that stands in what was sent (-1: nowhere in one piece)."""

    request_id: str
    audio: bytes
    found: int
    final: bool


def stream_of(commands: list[DuplexCommand]) -> bytes:
    """The samples that were sent. Half a sample before a command that ends the input is dropped, which is a stated rule."""
    pieces: list[bytes] = []  # joined once: a stream is longer than all else that a run leaves
    size = 0
    for command in commands:
        if isinstance(command, AppendAudio):
            pieces.append(command.audio)
            size += len(command.audio)
        elif size % 2 and isinstance(command, _ENDS_INPUT):
            pieces = [b"".join(pieces)[:-1]]
            size -= 1
    return b"".join(pieces)


def sizes_of(commands: list[DuplexCommand]) -> Iterator[int]:
    """How long that stream is behind each command, in bytes."""
    size = 0
    for command in commands:
        if isinstance(command, AppendAudio):
            size += len(command.audio)
        elif isinstance(command, _ENDS_INPUT):
            size -= size % 2
        yield size


def _passed_on(session: SessionEvidence, talk: Conversation, sent: list[bytes]) -> Iterator[Violation]:
    """The server passes on what it reads, in order, until the session ends.

    Of what is sent while its sender waits for a slot only so much is kept (`max_early_events`, `max_early_bytes`). From there
    on to the slot the connection refuses input, once and for all of it: one stretch may be missing then, and nothing else.
    """
    codes = {heard.event.error.code for heard in talk.heard if isinstance(heard.event, wire.Error)}
    if not session.undisturbed or talk.terminal is None or codes & {"event_too_large", "bad_event", "invalid_json"}:
        return
    came = [read for read in talk.read if read.audio]
    end = session.told[-1].at
    if all(read.at < end for read in came) and [read.audio for read in came] == sent:
        return
    read, stream = b"".join([read.audio for read in came]), b"".join(sent)
    sure = sum(len(read.audio) for read in came if read.at < end)
    if "input_backpressure" in codes:
        passed = _with_one_gap(read, stream, sure)
    else:
        passed = read.startswith(stream) and len(stream) >= sure
    if not passed:
        yield Violation("B9", f"{talk.name}: {len(read)} bytes were read, other {len(stream)} were passed on")


def _with_one_gap(read: bytes, stream: bytes, sure: int) -> bool:
    """Whether ``stream`` is ``read`` without one stretch of it, and holds all of its end that came before ``sure`` bytes."""
    same = next(
        (at for at, (one, other) in enumerate(zip(read, stream, strict=False)) if one != other),
        min(len(read), len(stream)),
    )
    if same == len(stream):
        return True  # the slot never came, or nothing was said after it
    end = read.rfind(stream[same:])
    return end >= same and end + len(stream) - same >= sure


def as_sent(session: SessionEvidence) -> bool:
    """Whether the model is fed the samples as they are sent: the format in force is its own."""
    configs = [event.config for event in session.events if isinstance(event, SessionCreated | SessionUpdated)]
    formats = {(config.input_format.encoding, config.input_format.rate_hz) for config in configs}
    return formats == {("pcm16", 16_000)}


def was_refused(session: SessionEvidence) -> bool:
    """Whether some audio was refused, or a format changed: then the stream is not simply what was sent."""
    codes = {event.code.value for event in session.events if isinstance(event, ErrorRaised)}
    return bool(codes & {"input_backpressure", "bad_audio", "session_closed"})


def pieces(session: SessionEvidence, stream: bytes, name: str, turns: list[_Turn] | None = None) -> Iterator[Violation]:
    """Every piece that a stage was fed stands in what was sent, in that order. ``turns``: as :func:`_turns` finds them."""
    if session.site.plan.family == "resident":
        yield from _resident(session, stream, name)
    else:
        yield from _as_said(_turns(session, stream) if turns is None else turns, stream, name)


def _turns(session: SessionEvidence, stream: bytes) -> list[_Turn]:
    turns: list[_Turn] = []
    near = 0
    if session.site.plan.family == "resident":
        return turns  # whose units are looked at one by one
    for request_id, pieces in by_request(session.site.seen.input, session.session_id, 0).items():
        audio = b"".join([piece.prompt.audio for piece in pieces])
        found = _find(stream, audio, near)
        near = max(found, 0)
        turns.append(_Turn(request_id, audio, found, pieces[-1].prompt.final))
    return turns


def _as_said(turns: list[_Turn], stream: bytes, name: str) -> Iterator[Violation]:
    """Everything that a stage was fed stands in what was sent."""
    for request_id, audio, found, _ in turns:
        if audio and found < 0 and not _sent(audio, stream):
            yield Violation("B9", f"{name}: the {len(audio)} bytes that {request_id[-16:]} was fed were not sent so")


def _find(stream: bytes, audio: bytes, near: int) -> int:
    """Where ``audio`` stands in ``stream``; turns follow each other, so it is looked for from the one before on first."""
    # A long pattern costs a search much before it begins; where it begins as expected it is compared.
    head = stream.find(audio[:_HEAD_BYTES], near)
    if head >= 0 and stream.startswith(audio, head):
        return head
    found = stream.find(audio, near)
    return found if found >= 0 or not near else stream.find(audio)


def _sent(audio: bytes, stream: bytes) -> bool:
    """Whether ``audio`` stands in ``stream``: in one piece, or turn after turn where a model is told several at once."""
    position = 0
    for _ in range(MAX_TURNS):
        found = stream.find(audio, position)
        if found >= 0:
            return True
        low, high = 0, len(audio)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if stream.find(audio[:middle], position) >= 0 else (low, middle - 1)
        if low < SHORT_BYTES:
            return False
        position = stream.find(audio[:low], position) + low
        audio = audio[low:]
    return False


def _resident(session: SessionEvidence, stream: bytes, name: str) -> Iterator[Violation]:
    """Units in order, each sample once in an epoch; the end of a unit may be padding.

    A new epoch is a new request, which may be given an interruption from its beginning. What the stage refused is fed again,
    in one piece with the turn after it where the model takes no units.
    """
    position, epoch, started = 0, 0, -1
    touched_at = _touched_at(session)
    for planned in session.accepted:
        if planned.silence or not planned.audio:
            continue
        if planned.fence.epoch != epoch:
            position, epoch = 0, planned.fence.epoch
        found, size = place(planned.audio, stream, position)
        if found < 0 and planned.audio.startswith(_refused(session)) and _sent(planned.audio, stream):
            continue
        if found < 0:
            text = f"a unit of {len(planned.audio)} bytes after byte {position} was not sent so"
            yield Violation("B9", f"{name}: {text}")
            return
        if found != position and size < SHORT_BYTES:
            started = -1  # where it really stands nobody can say
            continue
        lost = 0
        if found != position:
            lost = len(stream[position:found].strip(b"\0"))  # digital silence may have been taken for padding
        position = found + size
        if lost and planned.fence.epoch == started and planned.at < touched_at:
            text = f"{lost} bytes before byte {found} were never fed, though what follows them was"
            yield Violation("B10", f"{name}: {text}")
            return
        started = planned.fence.epoch


def _refused(session: SessionEvidence) -> tuple[bytes, ...]:
    """The pieces that the plugin planned and no stage took."""
    entries = [entry for entry in session.site.seen.planned if entry.session_id == session.session_id]
    taken = {(entry.request_id, entry.fence.epoch, entry.seq) for entry in entries if entry.accepted}
    rest = [entry for entry in entries if (entry.request_id, entry.fence.epoch, entry.seq) not in taken]
    return tuple(entry.audio for entry in rest if entry.audio)


def _touched_at(session: SessionEvidence) -> float:
    """Until when a simulated speaker's samples, each of which occurs once, were left alone by all commands.

    A model that hears whole turns is fed nothing of what lies between them; one that ends turns by itself refuses commits.
    """
    if session.person is None or session.site.plan.client_commit:
        return float("-inf")
    return next((at for at, command in session.orders if not isinstance(command, _LEAVES_INPUT)), float("inf"))


def place(unit: bytes, stream: bytes, position: int) -> tuple[int, int]:
    """Where a unit stands in the stream from ``position`` on (-1: nowhere), and its size without padding."""
    if not unit.endswith(_PADDING):
        if stream.startswith(unit, position):
            return position, len(unit)
        found = stream.find(unit, position)
        if found >= 0:
            return found, len(unit)
    # Digital silence at its end may be padding as well as sent: it is not looked for.
    bare = unit.rstrip(b"\0")
    bare += b"\0" * (len(bare) % 2)
    return (stream.find(bare, position) if bare else position), len(bare)


def _plain(session: SessionEvidence, person: Person, talk: Conversation) -> bool:
    """Whether nothing but the detector decided what is a turn."""
    choices = talk.choices
    steps = (*person.voice, *person.hands)
    orders = {step.name for step in steps if isinstance(step, Order)}
    return (
        session.undisturbed
        and session.site.plan.family == "ephemeral"
        and session.site.plan.transcribes  # else the words of a turn that was interrupted are lost with it
        and choices.detection is not None
        and not (person.hooks or person.work or person.library)
        and not orders & _INPUT_ORDERS
        and not any(isinstance(command, _TAKES_INPUT) for _, command in session.orders)
        and not session.site.seen.deaths  # what a lost stage was being told may end with an error
        and all(_natural(step) for step in person.voice if isinstance(step, Say))
        and not {"stall", "slow_link", "tiny", "kill"} & _troubles(steps)
    )


def _natural(step: Say) -> bool:
    return step.chunk_bytes % 2 == 0 and step.pace >= 100 and step.quiet_ms >= 250


def _troubles(steps: tuple[object, ...]) -> set[str]:
    return {type(step).__name__.lower() for step in steps}


def _runs(stream: bytes) -> list[tuple[int, int]]:
    """Stretches of speech, in samples: loud samples with no more than 60 ms between them."""
    import numpy as np

    if len(stream) < 2:
        return []
    samples = np.frombuffer(stream, dtype="<i2", count=len(stream) // 2)
    loud = (samples > LOUD) | (samples < -LOUD)
    edges = (np.flatnonzero(loud[1:] != loud[:-1]) + 1).tolist()
    if len(loud) and loud[0]:
        edges.insert(0, 0)
    if len(edges) % 2:
        edges.append(len(loud))
    runs: list[tuple[int, int]] = []
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        if runs and start - runs[-1][1] < 960:
            start = runs.pop()[0]
        runs.append((start, end))
    return runs


def _speech(session: SessionEvidence, turns: list[_Turn], stream: bytes, name: str) -> Iterator[Violation]:
    runs = _runs(stream)
    told = [turn for turn in turns if turn.audio and turn.found >= 0 and turn.final]
    spans = sorted((turn.found // 2, (turn.found + len(turn.audio)) // 2) for turn in told)
    for start, _ in spans:
        for low, high in runs:
            if low < start < high - _FRAME_SAMPLES:
                yield Violation("B9", f"{name}: what was fed begins {start - low} samples into speech")
    items = {event.item.item_id for event in session.events if isinstance(event, InputCommitted)}
    dropped = sum(
        (isinstance(event, OverlapDecided) and event.action == "drop")
        or (isinstance(event, ItemDeleted) and event.item_id in items)  # what of it had yet to be fed goes with it
        for event in session.events
    )
    last = spans[-1][1] if spans else 0
    lost = [
        (low, high)
        for low, high in runs
        if high < last and high - low >= _LONG_SAMPLES and not any(start <= low and high <= end for start, end in spans)
    ]
    if len(lost) > dropped:
        yield Violation("B10", f"{name}: speech at samples {lost[0]} was never fed, though later speech was")
    yield from _overlaps(session, spans, name)


def _overlaps(session: SessionEvidence, spans: list[tuple[int, int]], name: str) -> Iterator[Violation]:
    """Two committed turns share no sample (a turn that was begun anew is fed again, so only commits count)."""
    committed = [event for event in session.events if isinstance(event, InputCommitted)]
    distinct = sorted(set(spans))
    crossing = [(one, other) for one, other in pairwise(distinct) if other[0] < one[1] < other[1]]
    if crossing and len(distinct) <= len(committed):
        yield Violation("B9", f"{name}: turns overlap: {crossing[0]}")
