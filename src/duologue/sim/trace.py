"""What happened in a run, in order: the material of digests, timelines and comparisons.

Rules kept here: an entry holds what a client, a stage or an operator could see, never an object that changes; what depends
on floating-point signal processing is noted by its size alone, so that digests agree between machines.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

_ID = re.compile(rb"(resp-duplex-[0-9a-f]{32}-\d+-[0-9a-f]{8}|duplex-[0-9a-f]{32}|(?:item|call)_[0-9a-f]{8})")
_TOKEN = re.compile(rb'("resume_token":")[^"]+')


class Entry(msgspec.Struct, frozen=True, gc=False):
    """``at`` in seconds since the run began; ``who`` a client, a stage or a part of the world; ``data`` text or a frame."""

    at: float
    who: str
    what: str
    data: bytes


@dataclass(slots=True)
class Trace:
    """The entries of one run, and what was exercised."""

    now: Callable[[], float]
    entries: list[Entry] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def note(self, who: str, what: str, data: bytes | str = b"") -> None:
        """Add an entry."""
        self.entries.append(Entry(self.now(), who, what, data.encode() if isinstance(data, str) else data))

    def count(self, name: str, by: int = 1) -> None:
        """Something was exercised."""
        self.counts[name] += by

    def digest(self) -> str:
        """One digest over everything, 16 hexadecimal digits."""
        digest = hashlib.sha256()
        for entry in self.entries:
            digest.update(f"{entry.at:.6f} {entry.who} {entry.what} ".encode())
            digest.update(entry.data)
            digest.update(b"\n")
        return digest.hexdigest()[:16]

    def of(self, who: str) -> list[Entry]:
        """The entries of one party."""
        return [entry for entry in self.entries if entry.who == who]


def anonymous(entries: Iterable[Entry]) -> list[Entry]:
    """The same entries with ids replaced by the order of their first appearance, to compare two runs."""
    names: dict[bytes, bytes] = {}

    def rename(match: re.Match[bytes]) -> bytes:
        return names.setdefault(match.group(0), b"#%d" % len(names))

    return [replace(entry, data=_ID.sub(rename, _TOKEN.sub(rb"\1*", entry.data))) for entry in entries]


def difference(first: list[Entry], second: list[Entry]) -> str | None:
    """Where two traces part, for people; ``None`` if they do not."""
    for index, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return f"entry {index}: {show(one)!r} against {show(other)!r}"
    if len(first) != len(second):
        longer = first if len(first) > len(second) else second
        following = show(longer[min(len(first), len(second))])
        return f"one has {len(first)} entries, the other {len(second)}; the next is {following!r}"
    return None


def show(entry: Entry, width: int = 160) -> str:
    """One line of a timeline."""
    text = entry.data.decode("utf-8", "replace")
    if len(text) > width:
        text = f"{text[: width - 3]}..."
    return f"{entry.at:10.3f}  {entry.who:<12} {entry.what:<12} {text}"
