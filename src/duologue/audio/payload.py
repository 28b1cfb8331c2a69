"""Audio that arrives as base64 text.

Rules
- What is too large is refused by its encoded length, before a byte of it is decoded.
- Garbage is an error, never skipped: a lost character would shift every sample after it.
- Line breaks, spaces and a data URL prefix are tolerated; clean text pays nothing for that.
"""

import binascii
import re
from typing import Final, Literal

import msgspec

_DATA_URL: Final = re.compile(r"\s*data:(audio/|application/octet-stream)[^,]{0,128};base64,", re.IGNORECASE)
_LONGEST_PREFIX: Final = 256
_WHITE_SPACE: Final = b" \t\n\r\x0b\x0c"


class AudioDataError(ValueError):
    """Audio that can't be read. `code` says which kind of fault, the text says what to do."""

    def __init__(self, code: Literal["bad_audio", "too_large"], message: str) -> None:
        super().__init__(message)
        self.code: Literal["bad_audio", "too_large"] = code


def decode_base64(text: str | bytes, max_bytes: int) -> bytes:
    """Decode standard base64 (padded) of at most `max_bytes` bytes. Empty text gives empty bytes.

    Raises AudioDataError: "too_large" above `max_bytes`, "bad_audio" for anything that is not base64.
    """
    encoded_limit = (max_bytes + 2) // 3 * 4
    if len(text) <= encoded_limit:
        clean = _clean(text)
        if clean is not None:
            return _within(clean, max_bytes)
    # Lines of as few as 16 characters and a prefix still count as this much audio; more is refused unread.
    if len(text) > encoded_limit + encoded_limit // 8 + _LONGEST_PREFIX:
        raise _too_large(len(text) * 3 // 4, max_bytes)
    bare = _bare(text)
    if len(bare) > encoded_limit:
        raise _too_large(len(bare) * 3 // 4, max_bytes)
    try:
        decoded = binascii.a2b_base64(bare, strict_mode=True)
    except ValueError as fault:
        raise AudioDataError(
            "bad_audio",
            f"the audio is not valid base64 ({fault}; {len(text)} characters): "
            "send the samples as standard base64 with padding",
        ) from None
    return _within(decoded, max_bytes)


def _clean(text: str | bytes) -> bytes | None:
    """Decode text that is base64 and nothing else; None if it is not, though it may yet be wrapped."""
    try:
        if isinstance(text, str):  # as strict as binascii and two to three times faster, but for str alone
            return msgspec.convert(text, bytes)
        return binascii.a2b_base64(text, strict_mode=True)
    except (msgspec.ValidationError, ValueError):
        return None


def _bare(text: str | bytes) -> bytes:
    """The base64 characters of `text` alone: no data URL prefix, no white space."""
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    prefix = _DATA_URL.match(text)
    if prefix is not None:
        text = text[prefix.end() :]
    # Anything beyond ASCII becomes a character that the strict decoder refuses.
    return text.encode("ascii", "replace").translate(None, _WHITE_SPACE)


def _within(decoded: bytes, max_bytes: int) -> bytes:
    if len(decoded) > max_bytes:
        raise _too_large(len(decoded), max_bytes)
    return decoded


def _too_large(byte_count: int, max_bytes: int) -> AudioDataError:
    return AudioDataError(
        "too_large",
        f"the audio is about {byte_count} bytes and the limit is {max_bytes}: send it in smaller appends",
    )
