"""Microphone and loudspeaker through sounddevice, the only file that knows it.

Rules kept here: the device's threads only copy samples; what is queued for the loudspeaker is dropped at once when the
server says that the user speaks, and the server is told how much was really played.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Any

import typer

from duologue.cli.exchange import RATE_HZ, TalkOptions, settings, show
from duologue.cli.fault import require
from duologue.client import ClientSession, PlaybackTracker, connect
from duologue.wire.server_events import AudioDelta, AudioDone, OutputCleared, ResponseDone, ServerEvent, SpeechStarted

MIC_HINT = "install the extra: pip install 'duologue[mic]' (on Debian and Ubuntu also: apt install libportaudio2)"
_BLOCK_SAMPLES = RATE_HZ // 50
_ACK_PERIOD_S = 0.25


class Speaker:
    """What waits for the loudspeaker. Filled by the loop, emptied by the device's thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chunks: deque[bytes] = deque()

    def put(self, pcm16: bytes) -> None:
        with self._lock:
            self._chunks.append(pcm16)

    def clear(self) -> None:
        with self._lock:
            self._chunks.clear()

    def take(self, size: int) -> bytes:
        """Exactly `size` bytes, silence where there is no audio."""
        taken = bytearray()
        with self._lock:
            while self._chunks and len(taken) < size:
                chunk = self._chunks.popleft()
                wanted = size - len(taken)
                taken += chunk[:wanted]
                if len(chunk) > wanted:
                    self._chunks.appendleft(chunk[wanted:])
        return bytes(taken) + bytes(size - len(taken))


def talk_by_microphone(options: TalkOptions) -> int:
    """Until Ctrl-C. Raises CommandError if sounddevice is missing, ClientError."""
    library = require("sounddevice", MIC_HINT)
    try:
        asyncio.run(_talk(options, library))
    except KeyboardInterrupt:
        typer.echo("", err=True)
    return 0


async def _talk(options: TalkOptions, library: Any) -> None:
    loop = asyncio.get_running_loop()
    captured: asyncio.Queue[bytes] = asyncio.Queue(maxsize=250)
    speaker = Speaker()

    def capture(samples: Any, *_: object) -> None:
        loop.call_soon_threadsafe(_offer, captured, bytes(samples))

    def play(samples: Any, *_: object) -> None:
        samples[:] = speaker.take(len(samples))

    stream = {"samplerate": RATE_HZ, "channels": 1, "dtype": "int16", "blocksize": _BLOCK_SAMPLES}
    async with connect(options.url, api_key=options.api_key, session=settings(options, RATE_HZ)) as session:
        with library.RawInputStream(callback=capture, **stream), library.RawOutputStream(callback=play, **stream):
            typer.echo("speak; Ctrl-C ends", err=True)
            tracker = PlaybackTracker(now=loop.time, rate_hz=RATE_HZ)
            async with asyncio.TaskGroup() as group:
                sender = group.create_task(_send(session, captured))
                reporter = group.create_task(_report(session, tracker))
                async for event in session.events():
                    show(event, typer.echo)
                    await follow(event, session, speaker, tracker)
                sender.cancel()
                reporter.cancel()


def _offer(queue: asyncio.Queue[bytes], chunk: bytes) -> None:
    """Keep the newest sound if the server cannot take it as fast as it is spoken."""
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(chunk)


async def _send(session: ClientSession, captured: asyncio.Queue[bytes]) -> None:
    while True:
        await session.append(await captured.get())


async def _report(session: ClientSession, tracker: PlaybackTracker) -> None:
    while True:
        await asyncio.sleep(_ACK_PERIOD_S)
        for heard in tracker.acknowledgements():
            await session.ack_playback(heard.played_ms, response_id=heard.response_id, item_id=heard.item_id)


async def follow(event: ServerEvent, session: ClientSession, speaker: Speaker, tracker: PlaybackTracker) -> None:
    """Play, or fall silent."""
    match event:
        case AudioDelta():
            if tracker.add(event.response_id, event.item_id, len(event.delta) // 2) is not None:
                speaker.put(event.delta)
        case AudioDone():
            tracker.finish(event.response_id)
        case SpeechStarted():
            cut = tracker.stop()
            speaker.clear()
            if cut is not None:
                await session.truncate(cut.item_id, cut.played_ms)
        case OutputCleared():
            tracker.stop_response(event.response_id)
            speaker.clear()
        case ResponseDone() if event.response.status == "cancelled":
            tracker.stop_response(event.response.id)
            speaker.clear()
        case _:
            pass
