"""Text of the recogniser's tokens (Moonshine's `tokenizer.bin`).

The file is a list of byte strings, each behind its length: one byte below 128, else two bytes, low seven bits first.
A token's number is its place in the list. A word begins with U+2581; tokens 3 to 258 in this vocabulary are single
bytes, so text may be cut inside a character only at such tokens, never by this module: pieces are joined as bytes
and decoded once.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from duologue.detect.weights import ModelUnavailableError, require_weights

_WORD_START = "▁"
_SPECIAL = frozenset({b"<unk>", b"<s>", b"</s>"})


class Vocabulary:
    """Tokens to text. Immutable once loaded."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Read `path`. Raises ModelUnavailableError if it is missing or cut short."""
        try:
            return cls(parse_pieces(require_weights(path).read_bytes()))
        except ValueError as error:
            raise ModelUnavailableError(f"{path}: {error}: delete it and run `duologue setup` again") from error

    def __len__(self) -> int:
        return len(self._pieces)

    def decode(self, tokens: Iterable[int]) -> str:
        """Text of `tokens` without special tokens, numbers out of range, and space at both ends."""
        pieces = (self._pieces[token] for token in tokens if 0 <= token < len(self._pieces))
        joined = b"".join(piece for piece in pieces if piece not in _SPECIAL and not piece.startswith(b"<<"))
        return joined.decode("utf-8", "ignore").replace(_WORD_START, " ").strip()


def parse_pieces(data: bytes) -> list[bytes]:
    """All byte strings of a vocabulary file, in order. Raises ValueError if the data ends inside one."""
    pieces: list[bytes] = []
    position = 0
    while position < len(data):
        length = data[position]
        position += 1
        if length >= 0x80:
            if position >= len(data):
                raise ValueError("vocabulary ends inside a length")
            length = (length & 0x7F) | data[position] << 7
            position += 1
        if position + length > len(data):
            raise ValueError(f"vocabulary ends inside token {len(pieces)}")
        pieces.append(data[position : position + length])
        position += length
    return pieces
