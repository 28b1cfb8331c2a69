"""What may be given to ``DuplexSessionRunner.emit`` as a mapping, and the items it becomes.

The mapping is judged once, at entry: unknown types and fields of the wrong kind are a ``ValueError`` that says which.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from duologue.engine.duplex.core.items import CloseRequested, CommandRefused, Item, StageFailed, Touched
from duologue.errors import ErrorCode


class _Payload(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True):
    pass


class ErrorPayload(_Payload, frozen=True, kw_only=True, tag="error"):
    """Tell the client of an error that changes nothing."""

    code: ErrorCode
    message: str
    event_id: str | None = None
    param: str | None = None


class FailedPayload(_Payload, frozen=True, kw_only=True, tag="response.failed"):
    """Fail the response of a request (``None``: the active one)."""

    message: str
    code: ErrorCode = ErrorCode.RUNTIME_STREAM_FAILED
    request_id: str | None = None
    session_ends: bool = False


class ClosedPayload(_Payload, frozen=True, kw_only=True, tag="session.closed"):
    """Close the session."""

    reason: str = "internal"


class ExpiredPayload(_Payload, frozen=True, kw_only=True, tag="session.expired"):
    """Expire the session."""

    reason: str = "internal"


class TouchedPayload(_Payload, frozen=True, kw_only=True, tag="session.touched"):
    """A sign of life."""


_AnyPayload = ErrorPayload | FailedPayload | ClosedPayload | ExpiredPayload | TouchedPayload


def item_from(payload: dict[str, object]) -> Item:
    """The item that ``payload`` means. Raises ``ValueError`` naming the field that is wrong."""
    try:
        parsed = msgspec.convert(payload, type=_AnyPayload)
    except msgspec.ValidationError as exc:
        raise ValueError(f"not an internal event: {exc}") from exc
    match parsed:
        case ErrorPayload():
            return CommandRefused(
                code=parsed.code, message=parsed.message, event_id=parsed.event_id, param=parsed.param
            )
        case FailedPayload():
            return StageFailed(
                request_id=parsed.request_id,
                code=parsed.code,
                message=parsed.message,
                session_ends=parsed.session_ends,
            )
        case ClosedPayload():
            return CloseRequested(kind="closed", reason=parsed.reason)
        case ExpiredPayload():
            return CloseRequested(kind="expired", reason=parsed.reason)
        case TouchedPayload():
            return Touched()
        case _:
            assert_never(parsed)
