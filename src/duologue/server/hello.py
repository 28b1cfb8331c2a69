"""The hello of a connection: what its URL and headers ask for, and whether it may.

Rules kept here: keys are compared in constant time and kept as hashes; a browser's page must be on the allow-list; what a
URL asks for is read leniently, since proxies and clients add their own parameters.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import msgspec

from duologue.errors import AdmissionFault, ErrorCode
from duologue.wire import Dialect

KEY_PROTOCOL: Final = "openai-insecure-api-key."
REALTIME_PROTOCOL: Final = "realtime"
LOCAL_ORIGINS: Final = ("http://localhost:*", "http://127.0.0.1:*", "http://[::1]:*", "https://localhost:*")
_NO: Final = frozenset({"0", "false", "no", "off", ""})


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """What a connection asks for. ``opens`` is false when its first message decides (open or resume)."""

    dialect: Dialect
    model: str | None = None
    opens: bool = True
    key_id: str = ""


def read_hello(path: str, query: str, key_id: str = "") -> Hello:
    """The hello in a path and a query string.

    ``/v1/duplex`` and ``?duplex=1`` mean the duplex dialect; there ``model`` opens at once unless ``autostart=0`` or
    ``resume=1``. The GA dialect always opens at once.
    """
    params = dict(parse_qsl(query, keep_blank_values=True))
    duplex = _flag(params, "duplex", default=path.rstrip("/").endswith("/duplex"))
    model = params.get("model") or None
    if not duplex:
        return Hello(dialect="ga", model=model, key_id=key_id)
    starts = model is not None or _flag(params, "autostart", default=False)
    opens = starts and _flag(params, "autostart", default=True) and not _flag(params, "resume", default=False)
    return Hello(dialect="duplex", model=model, opens=opens, key_id=key_id)


def _flag(params: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = params.get(name)
    return default if value is None else value.strip().lower() not in _NO


class Access:
    """Who may connect: API keys (none: anybody) and pages of browsers."""

    __slots__ = ("_digests", "_origins")

    def __init__(self, keys: Sequence[str] = (), origins: Sequence[str] = LOCAL_ORIGINS) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]
        self._origins = tuple(origins)

    @property
    def keyed(self) -> bool:
        """Whether a key is needed."""
        return bool(self._digests)

    def admit(self, authorization: str | None, subprotocols: Sequence[str], origin: str | None) -> str:
        """The id of the key that was shown (empty when none is needed).

        Raises :class:`AdmissionFault` with ``origin_not_allowed`` or ``invalid_api_key``.
        """
        if origin is not None and not self.allows_origin(origin):
            raise AdmissionFault(
                ErrorCode.ORIGIN_NOT_ALLOWED,
                "Pages of this origin may not connect: add it to server.allowed_origins.",
            )
        if not self._digests:
            return ""
        key = _bearer(authorization) or _key_protocol(subprotocols)
        digest = hashlib.sha256(key.encode("utf-8", "replace")).digest()
        known = [hmac.compare_digest(digest, other) for other in self._digests]  # all of them: no early exit
        if not any(known):
            message = "The API key is wrong." if key else "An API key is needed: send Authorization: Bearer KEY."
            raise AdmissionFault(ErrorCode.INVALID_API_KEY, message)
        return digest.hex()[:12]

    def allows_origin(self, origin: str) -> bool:
        """Whether a page of this origin may connect; ``null`` (a sandboxed page or a file) must be listed like any."""
        return any(_matches(origin, pattern) for pattern in self._origins)


def _matches(origin: str, pattern: str) -> bool:
    if pattern in ("*", origin):
        return True
    if not pattern.endswith(":*"):
        return False
    try:
        parts = urlsplit(origin)
        host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname
        return f"{parts.scheme}://{host}" == pattern[:-2] and parts.username is None and not parts.path
    except ValueError:
        return False


def _bearer(authorization: str | None) -> str:
    scheme, _, key = (authorization or "").strip().partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _key_protocol(subprotocols: Sequence[str]) -> str:
    return next((name[len(KEY_PROTOCOL) :] for name in subprotocols if name.startswith(KEY_PROTOCOL)), "")
