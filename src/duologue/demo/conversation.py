"""The conversation itself: a person with a microphone and a loudspeaker, in real time, on one session.

Rules kept here: the microphone never pauses and keeps time by its samples, not by how long each send took; the
loudspeaker behaves like a stock client's (it falls silent when the server says that the user speaks, and tells the
server how much was heard); what happens is only noted here, and judged elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import msgspec
from msgspec import UnsetType

from duologue.client import ClientError, ClientSession, RequestError
from duologue.demo.ledger import Answer, Ledger
from duologue.demo.microphone import Microphone, Spoken, Utterance
from duologue.demo.player import Player
from duologue.wire.objects import Item, StatusError
from duologue.wire.server_events import (
    AnswerDelays,
    AudioDelta,
    AudioDone,
    Error,
    InputCommitted,
    OutputCleared,
    OverlapDecision,
    ResponseCreated,
    ResponseDone,
    ServerEvent,
    SessionClosed,
    SessionExpired,
    SpeechStarted,
    TranscriptDelta,
    TranscriptionCompleted,
)

_POLL_S = 0.02
_ACK_PERIOD_S = 0.2


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How long a person waits, in seconds."""

    answer_s: float = 12.0  # from the last word to the first sound of an answer
    listening_s: float = 25.0  # to an answer that they want to hear out
    pause_s: float = 0.5  # before they speak again


class Conversation:
    """One session, one microphone, one loudspeaker, on the clock `now` (seconds)."""

    def __init__(self, session: ClientSession, microphone: Microphone, player: Player, *, now: Callable[[], float]):
        self.session = session
        self.microphone = microphone
        self.player = player
        self.ledger = Ledger()
        self.patience = Patience()
        self._now = now
        self._tasks: list[asyncio.Task[None]] = []
        self.microphone_start_s = 0.0
        self.hung_up = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Microphone and loudspeaker are on inside this block."""
        self.microphone_start_s = self._now()
        self._tasks = [
            asyncio.create_task(self._capture(), name="demo-microphone"),
            asyncio.create_task(self._listen(), name="demo-events"),
            asyncio.create_task(self._acknowledge(), name="demo-acknowledgements"),
        ]
        try:
            yield
        finally:
            self.hung_up = True
            for task in self._tasks:
                task.cancel()
            results = await asyncio.gather(*self._tasks, return_exceptions=True)
            for result in results:
                if isinstance(result, Exception) and not isinstance(result, ClientError):
                    raise result

    # -- what a person does

    def say(self, utterance: Utterance) -> Spoken:
        """Begin to speak; the words go out in real time."""
        spoken = self.microphone.say(utterance)
        zero_s, rate_hz = self.microphone_start_s, self.microphone.rate_hz
        onset_s, end_s = zero_s + spoken.onset_sample / rate_hz, zero_s + spoken.end_sample / rate_hz
        self.ledger.begin_turn(utterance.text, onset_s, end_s)
        return spoken

    async def await_answer(self) -> Answer | None:
        """Until the answer to this turn can be heard; ``None`` if none comes."""
        wait_s = self.ledger.turn.end_s - self._now() + self.patience.answer_s
        await self.until(lambda: self._audible() is not None, wait_s)
        return self._audible()

    async def await_response(self) -> bool:
        """Until the server has begun to answer this turn, heard or not; false if it does not."""
        wait_s = self.ledger.turn.end_s - self._now() + self.patience.answer_s
        return await self.until(lambda: bool(self.ledger.turn.response_ids), wait_s)

    def answered(self) -> bool:
        """Every response to this turn is over."""
        answers = [self.ledger.answers[response_id] for response_id in self.ledger.turn.response_ids]
        return bool(answers) and all(answer.done_s is not None for answer in answers)

    async def hear_out(self, *, at_most_s: float | None = None) -> None:
        """Until the answer has been played to its end, or for `at_most_s`."""
        if await self.await_answer() is not None:
            await self.until(self._silent, at_most_s if at_most_s is not None else self.patience.listening_s)
        await self.pause()

    async def pause(self) -> None:
        """The silence between two thoughts."""
        await self.until(lambda: False, self.patience.pause_s)

    async def hear(self, played_ms: float) -> bool:
        """Until so much of the answer to this turn was played; false if it never was."""

        def enough() -> bool:
            answer = self._audible()
            heard = self.player.heard(answer.response_id) if answer is not None else None
            return heard is not None and heard.played_ms >= played_ms

        return await self.until(enough, played_ms / 1000 + self.patience.answer_s)

    async def hush(self) -> None:
        """Stop whatever still plays, as a person does who has heard enough."""
        if not self._silent() and self.ledger.ended is None:
            self.player.stop()
            await self.session.clear_output()
            await self.until(self._silent, self.patience.answer_s)

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for `condition`, at most `timeout_s`; at once false if the session is over."""
        deadline_s = self._now() + timeout_s
        while not condition():
            if self.ledger.ended is not None or self._now() >= deadline_s:
                return condition()
            await asyncio.sleep(_POLL_S)
        return True

    async def heard_texts(self) -> dict[str, str]:
        """What the server holds as said, by response: the text of each answer's item, cut to what was heard."""
        texts = {}
        for answer in self.ledger.answers.values():
            text = answer.kept_text or ""
            if answer.item_id and self.session.ended is None:
                with contextlib.suppress(RequestError):
                    text = transcript_of(await self.session.retrieve(answer.item_id))
            texts[answer.response_id] = text
        return texts

    def _audible(self) -> Answer | None:
        answer = self.ledger.answer_to(len(self.ledger.turns)) if self.ledger.turns else None
        return answer if answer is not None and answer.first_audio_s is not None else None

    def _silent(self) -> bool:
        open_answers = [answer for answer in self.ledger.answers.values() if answer.done_s is None]
        return not open_answers and self.player.remaining_s <= 0

    # -- microphone and loudspeaker

    async def _capture(self) -> None:
        """Send each chunk when its last sample has been spoken. After a delay the chunks it held up follow at once."""
        while True:
            chunk = self.microphone.take()
            await asyncio.sleep(max(0.0, self.microphone_start_s + self.microphone.position_s - self._now()))
            await self.session.append(chunk)

    async def _acknowledge(self) -> None:
        while True:
            await asyncio.sleep(_ACK_PERIOD_S)
            for heard in self.player.acknowledgements():
                await self.session.ack_playback(
                    heard.played_ms, response_id=heard.response_id, item_id=heard.item_id or None
                )

    async def _listen(self) -> None:
        try:
            async for event in self.session.events():
                await self._take(event)
        except ClientError as fault:
            self.ledger.end(str(fault), fault.code)
            raise
        if not self.hung_up:
            self.ledger.end("the session was closed", None)

    async def _take(self, event: ServerEvent) -> None:
        match event:
            case SpeechStarted() | OverlapDecision(action="barge_in"):
                await self._interrupted()
            case _:
                self._note(event, self._now())

    def _note(self, event: ServerEvent, now_s: float) -> None:
        ledger = self.ledger
        match event:
            case AudioDelta():
                self._play(event, now_s)
            case AudioDone():
                self.player.finish(event.response_id)
            case TranscriptDelta():
                ledger.text(event.response_id, event.delta, now_s)
            case InputCommitted():
                ledger.committed(event.item_id)
            case TranscriptionCompleted():
                ledger.transcribed(event.item_id, event.transcript)
            case ResponseCreated():
                ledger.response_created(event.response.id, now_s)
            case ResponseDone():
                self._done(event, now_s)
            case OutputCleared():
                self.player.stop_response(event.response_id)
            case Error():
                ledger.errors.append(f"{event.error.code or event.error.type}: {event.error.message}")
            case SessionClosed():
                ledger.end(f"closed by the server: {event.reason}", _known(event.error_code))
            case SessionExpired():
                ledger.end(f"expired: {event.reason}", None)
            case _:
                pass

    def _play(self, event: AudioDelta, now_s: float) -> None:
        duration_ms = len(event.delta) / 2 / self.player.rate_hz * 1000
        self.ledger.audio(event.response_id, event.item_id, duration_ms, now_s)
        self.player.play(event.response_id, event.item_id, event.delta)

    async def _interrupted(self) -> None:
        """The server says that the user speaks: fall silent, and say how much was heard."""
        now_s = self._now()
        cut = self.player.stop()
        if cut is None:
            return
        self.ledger.interrupted(cut.response_id, now_s, played_ms=cut.played_ms)
        if cut.item_id:
            await self.session.truncate(cut.item_id, cut.played_ms)

    def _done(self, event: ResponseDone, now_s: float) -> None:
        response = event.response
        error = response.status_details.error if response.status_details is not None else None
        self.ledger.response_done(
            response.id,
            response.status,
            now_s,
            kept_text=transcript_of(response.output[0]) if response.output else None,
            error=f"{error.code}: {error.message or 'no message'}" if isinstance(error, StatusError) else "",
        )
        answer = self.ledger.answers[response.id]
        answer.generated_ms = event.generated_audio_ms if isinstance(event.generated_audio_ms, int) else None
        answer.delays = event.delays if isinstance(event.delays, AnswerDelays) else None
        answer.generated_text = event.generated_text if isinstance(event.generated_text, str) else None
        self.player.finish(response.id)
        if response.status != "cancelled" or answer.first_audio_s is None:
            return
        heard = self.player.stop_response(response.id)
        details = response.status_details
        if details is not None and details.reason == "turn_detected":
            self.ledger.interrupted(response.id, now_s, played_ms=heard.played_ms if heard is not None else 0)


def _known(text: str | UnsetType) -> str | None:
    return text if isinstance(text, str) else None


def transcript_of(item: Item) -> str:
    """The words of an item."""
    parts = item.content if isinstance(item.content, list) else []
    texts = [part.transcript if isinstance(part.transcript, str) else part.text for part in parts]
    return " ".join(text for text in texts if isinstance(text, str))
