"""Everything an operator may set, in one immutable value. Without a file the defaults hold: the embedded model, loopback.

Times are in seconds or milliseconds as named, sizes in bytes.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from duologue.config.pipeline import PipelineConfig
from duologue.config.session import SemanticVad, SessionConfig, SessionPatch, check_detection, merge
from duologue.config.stage_config import DuplexSessionRuntimeConfig, replica_groups
from duologue.config.turns import TurnLimits
from duologue.errors import ClientFault
from duologue.outputs import Options

LogLevel = Literal["debug", "info", "warning", "error"]

LARGEST_NUMBER: Final = 2**53
"""Beyond it the arithmetic of clocks and bytes is not exact, and further up it fails."""

_PLUGIN = re.compile(r"^[A-Za-z_][\w-]*$|^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_sizes(settings: object, path: str) -> None:
    """Raise ``ValueError`` for the first number in ``settings``, at any depth, that is too large for arithmetic, or none."""
    inner: list[tuple[str, object]] = []
    if isinstance(settings, msgspec.Struct):
        inner = [(name, getattr(settings, name)) for name in settings.__struct_fields__]
    elif isinstance(settings, Mapping):
        inner = [(str(name), value) for name, value in settings.items()]
    elif isinstance(settings, tuple):
        inner = [(str(index), value) for index, value in enumerate(settings)]
    elif isinstance(settings, int) and abs(settings) > LARGEST_NUMBER:
        raise ValueError(f"{path} must be at most {LARGEST_NUMBER}, got a number of {settings.bit_length()} bits")
    elif isinstance(settings, float) and not (math.isfinite(settings) and abs(settings) <= LARGEST_NUMBER):
        raise ValueError(f"{path} must be a number of at most {LARGEST_NUMBER}, got {settings!r}")
    for name, value in inner:
        check_sizes(value, f"{path}.{name}" if path else name)


class ServerLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of connections. An event above ``max_event_bytes`` is refused, a frame above ``max_frame_bytes`` closes."""

    max_event_bytes: int = 15 * 1024 * 1024
    max_frame_bytes: int = 24 * 1024 * 1024
    sessions_per_key: int | None = None
    first_message_timeout_s: float = 10.0
    close_timeout_s: float = 5.0
    drain_timeout_s: float = 10.0
    ping_interval_s: float = 20.0
    ping_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        for key in self.__struct_fields__:
            value = getattr(self, key)
            if value is not None and not value > 0:
                raise ValueError(f"{key} must be greater than 0, got {value!r}")
        if self.max_frame_bytes <= self.max_event_bytes:
            raise ValueError(
                f"max_frame_bytes must be greater than max_event_bytes ({self.max_event_bytes}), "
                f"got {self.max_frame_bytes}"
            )


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the server listens and whom it lets in. An interface that others can reach needs ``api_keys``.

    ``limits`` are those of connections and their sessions, ``turns`` those of ordinary requests.
    """

    host: str = "127.0.0.1"
    port: int = 8765
    api_keys: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    tls_certificate: str | None = None
    tls_key: str | None = None
    resumable: bool = True
    limits: ServerLimits = ServerLimits()
    turns: TurnLimits = TurnLimits()

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise ValueError(f"port must be between 0 and 65535, got {self.port}")
        if (self.tls_certificate is None) != (self.tls_key is None):
            missing = "tls_key" if self.tls_key is None else "tls_certificate"
            raise ValueError(f"{missing} is missing: TLS needs tls_certificate and tls_key")
        if any(not key for key in self.api_keys):
            raise ValueError("api_keys must not hold an empty key")
        if not self.api_keys and not is_loopback(self.host):
            raise ValueError(
                f"host {self.host!r} can be reached from other machines, so api_keys must hold at least one key; "
                "or use 127.0.0.1"
            )


class ModelChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which plugin is served: ``cascade``, ``native``, ``scripted``, or ``package.module:name``; ``options`` are its own."""

    plugin: str = "cascade"
    options: Options = {}

    def __post_init__(self) -> None:
        if not _PLUGIN.match(self.plugin):
            raise ValueError(
                f"plugin must be a name like 'cascade' or 'scripted', or package.module:name, got {self.plugin!r}"
            )


class LoggingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is logged. ``stats``: one table per response, of what it cost at each stage."""

    level: LogLevel = "info"
    json: bool = False
    stats: bool = False


class DuologueConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole configuration. ``session`` holds what a session starts with; ``pipeline`` replaces the model's own."""

    server: ServerConfig = ServerConfig()
    sessions: DuplexSessionRuntimeConfig = DuplexSessionRuntimeConfig()
    session: SessionConfig = SessionConfig(turn_detection=SemanticVad())
    model: ModelChoice = ModelChoice()
    pipeline: PipelineConfig | None = None
    logging: LoggingConfig = LoggingConfig()

    def __post_init__(self) -> None:
        check_sizes(self, "")
        if self.pipeline is not None and self.sessions.replica_policy == "least_sessions":
            replica_groups(self.sessions.replica_groups, [stage.replicas for stage in self.pipeline.stages])
        try:
            merge(self.session, SessionPatch())
            if self.session.turn_detection is not None:
                check_detection(self.session.turn_detection)
        except ClientFault as fault:
            raise ValueError(f"session: {fault.message}") from None
