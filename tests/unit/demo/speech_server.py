"""A server in memory that listens to loudness and answers in real time, with manners that a test can spoil."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from duologue.audio import rms_dbfs
from duologue.client.socket import Socket, SocketClosed

RATE_HZ = 24_000
_DELTA_MS = 100
_END_OF_TURN_MS = 300
_ONSET_MS = 120


@dataclass
class Manners:
    """How this server behaves. The defaults are right."""

    silent_turns: frozenset[int] = frozenset()  # turns that get no answer
    deaf_turns: frozenset[int] = frozenset()  # turns whose transcript is empty
    answer_ms: Mapping[int, int] = field(default_factory=lambda: {1: 1500, 2: 1500, 3: 20_000, 4: 1500})
    stops: bool = True  # cancels when the user speaks
    late_audio_ms: int = 0  # audio of the cancelled answer after its terminal
    runs_on_ms: int = 0  # audio of the cancelled answer after the decision
    status_when_stopped: str = "cancelled"
    loses_terminal_of: int | None = None  # turn whose answer gets no response.done
    error_in_turn: int | None = None
    closes_in_turn: int | None = None
    forgets_cut: bool = False  # keeps the whole answer in the conversation, whatever was heard


@dataclass
class Item:
    item_id: str
    role: str
    text: str
    duration_ms: int = 0
    full_text: str = ""


class SpeechServer:
    """Opens one connection; its history is what a model would be asked."""

    def __init__(self, transcripts: list[str], answers: list[str], manners: Manners | None = None) -> None:
        self.transcripts = transcripts
        self.answers = answers
        self.manners = manners or Manners()
        self.items: list[Item] = []
        self.prompts: list[list[tuple[str, str]]] = []
        self.received: list[dict[str, Any]] = []
        self.turn = 0
        self._frames: asyncio.Queue[bytes | SocketClosed] = asyncio.Queue()
        self._speech_ms = 0.0
        self._quiet_ms = 1000.0
        self._speaking = False
        self._response: asyncio.Task[None] | None = None
        self._current: Item | None = None
        self._response_id = ""
        self._started_s = 0.0
        self._pushed_ms = 0
        self._late: list[asyncio.Task[None]] = []

    async def open(self, url: str, headers: Mapping[str, str]) -> Socket:
        del url, headers
        return self

    # -- the socket

    async def receive(self) -> bytes:
        frame = await self._frames.get()
        if isinstance(frame, SocketClosed):
            self._frames.put_nowait(frame)
            raise frame
        return frame

    async def close(self, code: int = 1000) -> None:
        for task in (self._response, *self._late):
            if task is not None:
                task.cancel()
        self._frames.put_nowait(SocketClosed(code, ""))

    async def send(self, frame: bytes) -> None:
        event = json.loads(frame)
        self.received.append(event)
        match event["type"]:
            case "session.update" if len([e for e in self.received if e["type"] == "session.update"]) == 1:
                self._tell("session.created", session={"type": "realtime", "id": "s1"})
            case "session.update":
                self._tell("session.updated", session={"type": "realtime", "id": "s1"})
            case "input_audio_buffer.append":
                self._hear(base64.b64decode(event["audio"]))
            case "conversation.item.truncate":
                self._truncate(event["item_id"], event["audio_end_ms"])
            case "conversation.item.retrieve":
                self._retrieve(event)
            case "output_audio_buffer.clear":
                self._stop("client_cancelled")
                self._tell("output_audio_buffer.cleared", response_id=self._response_id)
            case "session.close":
                self._tell("session.closed", reason="client_close", slot_released=True)
                self._frames.put_nowait(SocketClosed(1000, ""))
            case _:
                pass

    def _tell(self, type: str, **fields: Any) -> None:
        self._frames.put_nowait(json.dumps({"type": type, "event_id": "e", **fields}).encode())

    # -- listening

    def _hear(self, pcm16: bytes) -> None:
        duration_ms = len(pcm16) / 2 / RATE_HZ * 1000
        if rms_dbfs(pcm16) > -40.0:
            self._speech_ms += duration_ms
            self._quiet_ms = 0.0
            if not self._speaking and self._speech_ms >= _ONSET_MS:
                self._speaking = True
                self._onset()
        else:
            self._quiet_ms += duration_ms
            if self._speaking and self._quiet_ms >= _END_OF_TURN_MS:
                self._speaking = False
                self._speech_ms = 0.0
                self._end_of_turn()

    def _onset(self) -> None:
        if self._response is not None and not self._response.done():
            if not self.manners.stops:
                return
            self._tell("overlap.decision", action="barge_in", reason="speech", response_id=self._response_id)
        self._tell("input_audio_buffer.speech_started", item_id=f"u{self.turn + 1}", audio_start_ms=0)
        self._stop("turn_detected")

    def _end_of_turn(self) -> None:
        self.turn += 1
        manners = self.manners
        text = "" if self.turn in manners.deaf_turns else self.transcripts[self.turn - 1]
        item = Item(f"u{self.turn}", "user", text)
        self.items.append(item)
        self._tell("input_audio_buffer.committed", item_id=item.item_id)
        self._tell(
            "conversation.item.input_audio_transcription.completed",
            item_id=item.item_id,
            content_index=0,
            transcript=text,
            usage={"type": "duration", "seconds": 1.0},
        )
        if manners.error_in_turn == self.turn:
            self._tell("error", error={"type": "server_error", "code": "runtime_append_failed", "message": "Oh no."})
        if manners.closes_in_turn == self.turn:
            self._tell("session.closed", reason="fault", slot_released=True, error_code="replica_unavailable")
            self._frames.put_nowait(SocketClosed(1011, ""))
            return
        if self.turn in manners.silent_turns:
            return
        self.prompts.append([(each.role, each.text) for each in self.items if each.text])
        self._response = asyncio.create_task(self._answer(self.turn), name=f"answer-{self.turn}")

    # -- answering

    async def _answer(self, turn: int) -> None:
        text, duration_ms = self.answers[turn - 1], self.manners.answer_ms[turn]
        item = Item(f"a{turn}", "assistant", text, duration_ms, text)
        self._current, self._response_id = item, f"r{turn}"
        self.items.append(item)
        await asyncio.sleep(0.2)
        self._started_s = asyncio.get_running_loop().time()
        self._pushed_ms = 0
        self._tell("response.created", response={"id": self._response_id, "status": "in_progress"})
        self._text(turn, text)
        while self._pushed_ms < duration_ms:
            self._push(turn)
            ahead_s = self._started_s + (self._pushed_ms - 400) / 1000
            await asyncio.sleep(max(0.0, ahead_s - asyncio.get_running_loop().time()))
        self._end(turn, "completed", None)

    def _push(self, turn: int) -> None:
        tone = (b"\x00\x10" + b"\x00\xf0") * (RATE_HZ * _DELTA_MS // 2000)
        self._tell(
            "response.output_audio.delta",
            response_id=f"r{turn}",
            item_id=f"a{turn}",
            output_index=0,
            content_index=0,
            delta=base64.b64encode(tone).decode(),
        )
        self._pushed_ms += _DELTA_MS

    def _text(self, turn: int, text: str) -> None:
        self._tell(
            "response.output_audio_transcript.delta",
            response_id=f"r{turn}",
            item_id=f"a{turn}",
            output_index=0,
            content_index=0,
            delta=text,
        )

    def _stop(self, reason: str) -> None:
        response, item = self._response, self._current
        if response is None or response.done() or item is None:
            return
        response.cancel()
        turn = int(item.item_id[1:])
        heard_ms = int((asyncio.get_running_loop().time() - self._started_s) * 1000)
        self._cut(item, heard_ms)
        if self.manners.runs_on_ms:
            self._late.append(asyncio.create_task(self._run_on(turn, self.manners.runs_on_ms, reason)))
            return
        self._end(turn, self.manners.status_when_stopped, reason)
        for _ in range(self.manners.late_audio_ms // _DELTA_MS):
            self._push(turn)

    async def _run_on(self, turn: int, duration_ms: int, reason: str) -> None:
        for _ in range(duration_ms // _DELTA_MS):
            await asyncio.sleep(_DELTA_MS / 1000)
            self._push(turn)
        self._end(turn, "cancelled", reason)

    def _end(self, turn: int, status: str, reason: str | None) -> None:
        if self.manners.loses_terminal_of == turn:
            return
        item = next(each for each in self.items if each.item_id == f"a{turn}")
        details = None if reason is None else {"type": "cancelled", "reason": reason}
        self._tell("response.output_audio.done", response_id=f"r{turn}", item_id=f"a{turn}", output_index=0)
        self._tell(
            "response.done",
            response={
                "id": f"r{turn}",
                "status": status,
                "status_details": details,
                "output": [self._wire_item(item)],
            },
            generated_audio_ms=item.duration_ms,
            generated_text=item.full_text,
        )

    # -- items

    def _cut(self, item: Item, heard_ms: int) -> None:
        if self.manners.forgets_cut:
            return
        words = item.full_text.split()
        item.text = " ".join(words[: len(words) * min(heard_ms, item.duration_ms) // max(1, item.duration_ms)])

    def _truncate(self, item_id: str, heard_ms: int) -> None:
        for item in self.items:
            if item.item_id == item_id:
                self._cut(item, heard_ms)
                self._tell("conversation.item.truncated", item_id=item_id, content_index=0, audio_end_ms=int(heard_ms))

    def _retrieve(self, event: dict[str, Any]) -> None:
        for item in self.items:
            if item.item_id == event["item_id"]:
                self._tell("conversation.item.retrieved", item=self._wire_item(item))

    def _wire_item(self, item: Item) -> dict[str, Any]:
        side = "output" if item.role == "assistant" else "input"
        return {
            "type": "message",
            "id": item.item_id,
            "role": item.role,
            "content": [{"type": f"{side}_audio", "transcript": item.text}],
        }
