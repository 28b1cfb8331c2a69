"""Identifiers: how they are made and how what they carry is read back.

Nothing here is random: what must be unpredictable comes from the entropy of the runtime port, what must be reproducible
from a seed and a counter (:class:`IdSource`), so that the same seed gives the same ids.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import re
from dataclasses import dataclass

import msgspec

_ROLE = re.compile(r"^[A-Za-z0-9_-]+$")
_REQUEST = re.compile(r"^duplex-s\.([A-Za-z0-9_-]+)\.e\.(\d+)\.r\.([A-Za-z0-9_-]+)$")
_TURN = re.compile(r"-turn(\d+)$")


@dataclass(slots=True)
class IdSource:
    """Deterministic 32-bit hex suffixes from a seed and a counter."""

    seed: str
    counter: int = 0

    def next_hex(self) -> str:
        """Eight hex digits, different for every call with one seed."""
        self.counter += 1
        text = f"{self.seed}:{self.counter}".encode()
        return hashlib.blake2s(text, digest_size=4).hexdigest()


def session_id_from(entropy: bytes) -> str:
    """``duplex-<32 hex>`` from 16 bytes of entropy."""
    if len(entropy) != 16:
        raise ValueError(f"a session id needs 16 bytes of entropy, got {len(entropy)}")
    return f"duplex-{entropy.hex()}"


class StageRequestId(msgspec.Struct, frozen=True):
    """What a stage request id carries."""

    session_id: str
    epoch: int
    role: str

    @property
    def turn_id(self) -> int | None:
        """The turn in an ephemeral role (``stage0-turn7``), else ``None``."""
        match = _TURN.search(self.role)
        return int(match.group(1)) if match else None


def stage_request_id(session_id: str, epoch: int, role: str) -> str:
    """``duplex-s.<base64url(session)>.e.<epoch>.r.<role>``; the role's charset is ``[A-Za-z0-9_-]``."""
    if not _ROLE.match(role):
        raise ValueError(f"a request role may hold letters, digits, '_' and '-', got {role!r}")
    token = base64.urlsafe_b64encode(session_id.encode()).rstrip(b"=").decode()
    return f"duplex-s.{token}.e.{epoch}.r.{role}"


@functools.lru_cache(maxsize=4096)  # each output of a stage asks again, for the few requests that live
def parse_stage_request_id(request_id: str) -> StageRequestId | None:
    """The parts of a session's stage request id, or ``None`` if it is not one."""
    match = _REQUEST.match(request_id)
    if match is None:
        return None
    token = match.group(1)
    try:
        session_id = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    return StageRequestId(session_id=session_id, epoch=int(match.group(2)), role=match.group(3))
