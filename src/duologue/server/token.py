"""The credential that lets another connection take a session over.

Rules kept here: 32 random bytes, of which only a hash is kept; compared in constant time; a new one for every owner.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable

TOKEN_BYTES = 32


class ResumeToken:
    """The current token of one session."""

    __slots__ = ("_digest", "_entropy")

    def __init__(self, entropy: Callable[[int], bytes]) -> None:
        self._entropy = entropy
        self._digest = b""

    def rotate(self) -> str:
        """A new token, which makes the old one worthless. Returned once, never kept."""
        token = base64.urlsafe_b64encode(self._entropy(TOKEN_BYTES)).rstrip(b"=").decode()
        self._digest = _digest(token)
        return token

    def matches(self, token: str) -> bool:
        """Whether this is the current token."""
        return hmac.compare_digest(_digest(token), self._digest)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
