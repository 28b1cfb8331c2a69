"""Delivery: what a client is given is what the model produced for it, from the beginning, without gap or repetition.

At the engine's border every sample is compared; on the wire every sample too, where the format leaves it as it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from duologue.engine.duplex.events import ResponseAudio, ResponseCreated, ResponseDone, ResponseText, SessionRecovered
from duologue.sim.checkers.evidence import Evidence, SessionEvidence, Violation, epoch_of, made_for
from duologue.sim.conversation import Conversation
from duologue.sim.talker import exact_output
from duologue.wire import server_events as wire


class _Answer:
    """What left the engine of one response."""

    def __init__(self, created: ResponseCreated) -> None:
        self.created = created
        self.audio = bytearray()
        self.text = ""
        self.ms = 0.0
        self.done: ResponseDone | None = None


def check(evidence: Evidence) -> Iterator[Violation]:
    """Every session."""
    for session in evidence.sessions():
        answers: dict[str, _Answer] = {}
        yield from _collect(session, answers)
        if session.site.plan.family == "ephemeral":
            yield from _ephemeral(session, answers)
        else:
            yield from _resident(session, answers)
        if session.talk is not None:
            withdrawn = {response_id for _, response_id in session.site.seen.invalidated.get(session.session_id, ())}
            yield from _wire(session.talk, answers, withdrawn)


def _collect(session: SessionEvidence, answers: dict[str, _Answer]) -> Iterator[Violation]:
    for event in session.events:
        match event:
            case ResponseCreated():
                answers[event.response_id] = _Answer(event)
            case ResponseAudio():
                answer = answers.get(event.response_id)
                if answer is None:
                    continue
                if abs(event.start_ms - answer.ms) > 1.0:
                    text = f"audio of {event.response_id} starts at {event.start_ms} ms in place of {answer.ms:.1f}"
                    yield Violation("D1", f"{session.session_id}: {text}")
                answer.audio += event.audio
                answer.text += event.text
                answer.ms += len(event.audio) * 500 / event.rate_hz
            case ResponseText():
                if event.response_id in answers:
                    answers[event.response_id].text += event.text
            case ResponseDone():
                if event.response_id in answers:
                    answers[event.response_id].done = event
            case _:
                pass


class _Epochs:
    """In which epochs an answer may have been made: its own, or one that only the loss of a replica ended.

    Of two losses in a row the first may have begun an epoch that nobody heard of.
    """

    def __init__(self, session: SessionEvidence) -> None:
        self._recovered = {event.epoch for event in session.events if isinstance(event, SessionRecovered)}
        self._heard = {event.epoch for event in session.events if isinstance(event, ResponseCreated | ResponseAudio)}

    def of(self, answer: _Answer) -> set[int]:
        """These epochs."""
        epoch = answer.created.epoch
        found = {epoch}
        while epoch in self._recovered or (len(found) > 1 and epoch > 0 and epoch not in self._heard):
            epoch -= 1
            found.add(epoch)
        return found


def _ephemeral(session: SessionEvidence, answers: dict[str, _Answer]) -> Iterator[Violation]:
    made = {
        (request_id, stage): (b"".join(m.output.audio for m in outputs), "".join(m.output.text for m in outputs))
        for stage in (1, 2)
        for request_id, outputs in made_for(session.site.seen.output, session.session_id, stage).items()
    }
    used: set[str] = set()
    epochs = _Epochs(session)
    for response_id, answer in answers.items():
        stage = 2 if answer.created.modality == "audio" else 1
        if not answer.audio and not answer.text:
            continue
        made_in = epochs.of(answer)
        source = next(
            (
                request_id
                for (request_id, at), (audio, text) in made.items()
                if at == stage
                and request_id not in used
                and (audio.startswith(bytes(answer.audio)) if answer.audio else text.startswith(answer.text))
                and epoch_of(request_id) in made_in
            ),
            None,
        )
        if source is None:
            text = f"{len(answer.audio)} bytes and {answer.text[:40]!r} begin no answer that the model made"
            yield Violation("D2", f"{response_id}: {text} for epoch {answer.created.epoch}")
            continue
        used.add(source)
        audio, text = made[source, stage]
        if not text.startswith(answer.text):
            yield Violation("D3", f"{response_id}: says {answer.text!r}, the model said {text!r}")
        if answer.done is not None and answer.done.status == "completed" and bytes(answer.audio) != audio:
            yield Violation("D4", f"{response_id}: complete with {len(answer.audio)} of {len(audio)} bytes")


def _resident(session: SessionEvidence, answers: dict[str, _Answer]) -> Iterator[Violation]:
    made = made_for(session.site.seen.output, session.session_id, 0)
    streams = {request_id: b"".join(m.output.audio for m in outputs) for request_id, outputs in made.items()}
    position: dict[str, int] = {}
    epochs = _Epochs(session)
    for response_id, answer in answers.items():
        if not answer.audio or answer.created.modality != "audio":
            continue
        audio, made_in = bytes(answer.audio), epochs.of(answer)
        for request_id, stream in streams.items():
            near = position.get(request_id, 0)
            found = near if stream.startswith(audio, near) else stream.find(audio, near)
            if found >= 0 and found % 2 == 0 and epoch_of(request_id) in made_in:
                position[request_id] = found + len(audio)
                break
        else:
            text = f"{len(audio)} bytes are nothing that the model made next"
            yield Violation("D2", f"{response_id}: {text} for epoch {answer.created.epoch}")


def _wire(talk: Conversation, answers: dict[str, _Answer], withdrawn: set[str]) -> Iterator[Violation]:
    """What arrived is a beginning of what left the engine (of which a cancel may have withdrawn the end)."""
    if talk.gap or not exact_output(talk):
        return
    audio: dict[str, bytearray] = {}
    text: dict[str, str] = {}
    done: dict[str, str] = {}
    seen: set[int] = set()
    for heard in talk.heard:
        event = heard.event
        seq = event.server_event_seq if event is not None else None
        if isinstance(seq, int):
            if seq in seen:
                continue
            seen.add(seq)
        match event:
            case wire.AudioDelta():
                audio.setdefault(event.response_id, bytearray()).extend(event.delta)
            case wire.TranscriptDelta() | wire.TextDelta():
                text[event.response_id] = text.get(event.response_id, "") + event.delta
            case wire.ResponseDone():
                done[event.response.id] = event.response.status
            case _:
                pass
    done = {response_id: status for response_id, status in done.items() if response_id not in withdrawn}
    yield from _compare(talk, answers, audio, text, done)


def _compare(
    talk: Conversation,
    answers: dict[str, _Answer],
    audio: dict[str, bytearray],
    text: dict[str, str],
    done: dict[str, str],
) -> Iterator[Violation]:
    for response_id in talk.responses:
        answer = answers.get(response_id)
        if answer is None:
            yield Violation("D5", f"{talk.name}: {response_id} never left the engine")
            continue
        arrived = audio.get(response_id, bytearray())
        if not answer.audio.startswith(arrived):
            yield Violation("D5", f"{talk.name}: {response_id}: the audio that arrived is not what left the engine")
        if not answer.text.startswith(text.get(response_id, "")):
            yield Violation("D5", f"{talk.name}: {response_id}: the text that arrived is not what left the engine")
        if done.get(response_id) == "completed" and arrived != answer.audio:
            sizes = f"{len(arrived)} of {len(answer.audio)}"
            yield Violation("D6", f"{talk.name}: {response_id} is complete and {sizes} bytes arrived")
