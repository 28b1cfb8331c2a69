"""One response as the client follows it: its audio, its text and its end.

Rules kept here: the reader feeds, never waits; audio and text have bounds of their own, at which the oldest is dropped
and counted, so a response that nobody reads costs a bounded amount; the end is never dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from duologue.client.buffer import Buffer
from duologue.client.fault import SessionEndedError
from duologue.wire.objects import Response
from duologue.wire.server_events import ResponseDone

MAX_AUDIO_BYTES: Final = 4 * 1024 * 1024
MAX_DELTAS: Final = 4096


class ResponseStream:
    """A response in progress or over. Each of `audio` and `text` is for one consumer.

    ``audio_rate_hz`` is set by the first audio that states its rate; else it is the session's output rate.
    """

    def __init__(self, response: Response) -> None:
        self.response = response
        self.response_id = response.id
        self.metadata: dict[str, str] = dict(response.metadata or {})
        self.item_id: str | None = None
        self.audio_rate_hz: int | None = None
        self._audio: Buffer[bytes] = Buffer(max_entries=MAX_DELTAS, max_weight=MAX_AUDIO_BYTES, weight=len)
        self._text: Buffer[str] = Buffer(max_entries=MAX_DELTAS)
        self._end: asyncio.Future[ResponseDone] = asyncio.get_running_loop().create_future()

    async def audio(self) -> AsyncIterator[bytes]:
        """Audio in the session's output format, as it arrives, until the audio is complete or cut off."""
        while (chunk := await self._audio.take()) is not None:
            yield chunk

    async def text(self) -> AsyncIterator[str]:
        """Pieces of the transcript (or of the text, in text modality), until the response is over."""
        while (piece := await self._text.take()) is not None:
            yield piece

    async def done(self) -> ResponseDone:
        """The response's end. Raises SessionEndedError if the session ends without one."""
        return await asyncio.shield(self._end)

    @property
    def finished(self) -> bool:
        return self._end.done()

    @property
    def dropped_audio_bytes(self) -> int:
        """Audio that was lost because nobody took it."""
        return self._audio.dropped_weight

    @property
    def dropped_text_deltas(self) -> int:
        """Pieces of text that were lost because nobody took them."""
        return self._text.dropped

    # -- for the session

    def feed_audio(self, item_id: str, audio: bytes, rate_hz: int | None) -> None:
        self.item_id = item_id
        if rate_hz is not None:
            self.audio_rate_hz = rate_hz
        self._audio.put(audio)

    def feed_text(self, item_id: str, text: str) -> None:
        self.item_id = item_id
        self._text.put(text)

    def end_audio(self) -> None:
        self._audio.close()

    def finish(self, event: ResponseDone) -> None:
        self._audio.close()
        self._text.close()
        if not self._end.done():
            self._end.set_result(event)

    def abandon(self, fault: SessionEndedError) -> None:
        self._audio.close()
        self._text.close()
        if not self._end.done():
            self._end.set_exception(fault)
            self._end.exception()  # counts as seen: nobody need await a response that will never end
