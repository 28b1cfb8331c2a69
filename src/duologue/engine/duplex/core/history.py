"""The conversation: one list that serves wire items and prompt alike.

Rules kept here: items never reorder by themselves; an assistant's text is what was heard, by the arithmetic of
``heard.py``, and never more than was sent; a *soft* cut (estimated at an interruption) may be corrected later, unless the
client cleared it; a *hard* cut (the client's truncation) is a permanent maximum; the list is bounded: beyond ``max_items``,
or if the texts that a client wrote would fill ``HELD_PROMPTS`` prompts, the oldest items are forgotten; beyond
``max_chars`` the oldest are left out of the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from duologue.engine.duplex.commands import CallOutput
from duologue.engine.duplex.core.heard import SpokenText
from duologue.engine.duplex.events import (
    AudioPart,
    CallOutputPart,
    CallPart,
    ImagePart,
    ItemPart,
    ItemRole,
    ItemStatus,
    ItemView,
    TextPart,
)
from duologue.engine.duplex.plugin import HistoryEntry
from duologue.outputs import Image, ToolCall

HELD_PROMPTS = 16  # what a client writes may have so many times the length of the longest prompt

NO_RESULT: dict[str, str] = {
    "pending": "No result yet: the function is still running.",
    "answered": "The result is no longer part of the conversation.",
    "timed_out": "No result: the function did not answer in time.",
    "cancelled": "No result: the call was cancelled.",
}


@dataclass(slots=True)
class Item:
    """One item. ``spoken`` is set for what an assistant said aloud, ``transcript`` for what a user did.

    ``call`` is a function call and nothing else, ``output`` the result of one.

    ``base_ms`` is where its audio begins on the session's playback line (``None``: nothing was sent), ``sent_ms`` how much
    of it was sent and not taken back.
    """

    item_id: str
    role: ItemRole
    status: ItemStatus = "completed"
    sent_whole: bool = False  # all that the model said of it was sent
    texts: tuple[str, ...] = ()
    audio_ms: int = 0
    has_audio: bool = False
    transcript: str | None = None
    spoken: SpokenText | None = None
    response_id: str | None = None
    soft_cut_ms: float | None = None
    hard_cut_ms: float | None = None
    acked_ms: float = 0.0
    base_ms: float | None = None
    sent_ms: float = 0.0
    ack_only: bool = False
    commit_all: bool = False  # an answer that was made to its end counts as heard to its end
    sealed: bool = False  # cleared by the client: a late acknowledgement brings nothing back
    answered: bool = True
    call: ToolCall | None = None
    call_state: str = "pending"
    output: CallOutput | None = None
    images: tuple[Image, ...] = ()

    @property
    def cut_ms(self) -> float | None:
        """Up to where the audio counts as heard; ``None``: all of it."""
        cuts = [cut for cut in (self.soft_cut_ms, self.hard_cut_ms) if cut is not None]
        if self.ack_only:
            cuts.append(self.acked_ms)
        if self.status == "in_progress":
            cuts.append(self.sent_ms)  # what waits to be sent was said to nobody
        return min(cuts) if cuts else None

    @property
    def written_chars(self) -> int:
        """Length of what does not change: texts, arguments and results. Speech is bounded by the time that it takes."""
        written = sum(map(len, self.texts))
        written += 0 if self.call is None else len(self.call.arguments)
        return written + (0 if self.output is None else len(self.output.output))

    def heard_ms(self, position_ms: float) -> float:
        """How much of it was heard when the playback line is at ``position_ms``."""
        if self.base_ms is None:
            return 0.0
        return min(max(0.0, position_ms - self.base_ms), self.sent_ms)

    def cut_to(self, position_ms: float) -> None:
        """It was interrupted when the playback line was at ``position_ms``."""
        if self.has_audio and not (self.commit_all and self.sent_whole):
            self.soft_cut_ms = self.heard_ms(position_ms)

    def heard_text(self) -> str:
        """The item's text as the prompt and the wire show it."""
        if self.spoken is not None and self.has_audio:
            cut = self.cut_ms
            return self.spoken.text if cut is None else self.spoken.heard(int(cut))
        if self.spoken is not None:
            return self.spoken.text
        if self.has_audio:
            return self.transcript or ""
        return "\n".join(self.texts)

    def view(self) -> ItemView:
        """A snapshot for events."""
        parts: tuple[ItemPart, ...]
        if self.call is not None:
            parts = (CallPart(call_id=self.call.call_id, name=self.call.name, arguments=self.call.arguments),)
        elif self.output is not None:
            parts = (CallOutputPart(call_id=self.output.call_id, output=self.output.output),)
        elif self.has_audio:
            transcript = self.heard_text() if self.spoken is not None else self.transcript
            parts = (AudioPart(transcript=transcript, duration_ms=self._duration_ms()),)
        elif self.spoken is not None:
            parts = (TextPart(text=self.spoken.text),)
        else:
            texts = tuple(TextPart(text=text) for text in self.texts)
            parts = (*texts, *(ImagePart(detail=image.detail) for image in self.images))
        return ItemView(
            item_id=self.item_id, role=self.role, status=self.status, parts=parts, response_id=self.response_id
        )

    def _duration_ms(self) -> int:
        if self.spoken is None:
            return self.audio_ms
        cut = self.cut_ms
        return self.spoken.audio_ms if cut is None else min(int(cut), self.spoken.audio_ms)


@dataclass(slots=True)
class History:
    """Items in conversation order."""

    max_items: int
    max_chars: int
    items: list[Item] = field(default_factory=list)
    by_id: dict[str, Item] = field(default_factory=dict)
    evicted: int = 0
    written_chars: int = 0  # of all items together
    left_out: int = 0  # how often a prompt could not hold all of it

    def __len__(self) -> int:
        return len(self.items)

    def get(self, item_id: str) -> Item | None:
        return self.by_id.get(item_id)

    def before(self, item_id: str) -> str | None:
        """Id of the item before ``item_id``. ``KeyError`` if that is unknown."""
        index = self.items.index(self.by_id[item_id])
        return self.items[index - 1].item_id if index else None

    def call(self, call_id: str) -> Item | None:
        """The item of a function call."""
        for item in reversed(self.items):
            if item.call is not None and item.call.call_id == call_id:
                return item
        return None

    def append(self, item: Item) -> str | None:
        """Add at the end; returns the id before it."""
        self.items.append(item)
        self._added(item)
        return self.items[-2].item_id if len(self.items) > 1 else None

    def insert(self, item: Item, previous_item_id: str | None) -> str | None:
        """Add after ``previous_item_id`` (``"root"``: first; ``None``: last). ``KeyError`` if it is unknown."""
        if previous_item_id is None:
            return self.append(item)
        index = 0 if previous_item_id == "root" else self.items.index(self.by_id[previous_item_id]) + 1
        self.items.insert(index, item)
        self._added(item)
        index = self.items.index(item)
        return self.items[index - 1].item_id if index else None

    def remove(self, item_id: str) -> Item | None:
        """Forget one item."""
        item = self.by_id.pop(item_id, None)
        if item is not None:
            self.items.remove(item)
            self.written_chars -= item.written_chars
        return item

    def _added(self, newest: Item) -> None:
        self.by_id[newest.item_id] = newest
        self.written_chars += newest.written_chars
        most_chars = self.max_chars * HELD_PROMPTS
        while len(self.items) > self.max_items or (self.written_chars > most_chars and len(self.items) > 1):
            # Never the one that was just accepted, wherever the client put it.
            oldest = self.items.pop(int(self.items[0] is newest))
            del self.by_id[oldest.item_id]
            self.written_chars -= oldest.written_chars
            self.evicted += 1

    def played_after(self, position_ms: float) -> list[Item]:
        """Items whose audio reaches beyond ``position_ms`` of the playback line."""
        return [item for item in self.items if item.base_ms is not None and item.base_ms + item.sent_ms > position_ms]

    def prompt(self, before: str | None = None, of: Sequence[Item] | None = None) -> tuple[HistoryEntry, ...]:
        """The conversation (or ``of`` it) for the model, up to but without item ``before``. Empty turns are left out."""
        entries: list[HistoryEntry] = []
        chars = 0
        items = self.items if of is None else of
        stop = len(items)
        if before is not None and (of is not None or before in self.by_id):
            stop = next((index for index in range(stop - 1, -1, -1) if items[index].item_id == before), stop)
        outputs = {item.output.call_id: item.output.output for item in items if item.output is not None}
        for item in reversed(items[:stop]):
            said = _entries(item, outputs)
            chars += sum(len(entry.text) + sum(len(call.arguments) for call in entry.calls) for entry in said)
            if chars > self.max_chars:
                self.left_out += 1
                break
            entries.extend(reversed(said))
        entries.reverse()
        return tuple(entries)

    @property
    def image_bytes(self) -> int:
        """What the pictures of the conversation take."""
        return sum(len(image.url) for item in self.items for image in item.images)

    def unanswered(self) -> list[Item]:
        """User items that no response has taken up yet."""
        return [item for item in self.items if item.role == "user" and not item.answered]


def _entries(item: Item, outputs: dict[str, str]) -> tuple[HistoryEntry, ...]:
    """What a model reads of one item. A call is always followed by its result, wherever the client put that."""
    call = item.call
    if call is not None:
        result = outputs.get(call.call_id, NO_RESULT[item.call_state])
        return (
            HistoryEntry(item_id=item.item_id, role="assistant", text="", calls=(call,)),
            HistoryEntry(item_id=item.item_id, role="tool", text=result, call_id=call.call_id),
        )
    text = item.heard_text()
    if not text and not item.images:
        return ()
    return (HistoryEntry(item_id=item.item_id, role=item.role, text=text, images=item.images),)
