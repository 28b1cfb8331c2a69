"""What goes wrong for a client, as exceptions whose text is for people.

Rules kept here: every error of this package is a :class:`ClientError`; codes are the server's own, as strings, so that
a newer server's codes pass through.
"""

from __future__ import annotations


class ClientError(Exception):
    """Base of all errors of the client. ``code`` is the server's error code, if it gave one."""

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class ConnectError(ClientError):
    """The session could not be opened. ``status`` is the HTTP status if the server refused the connection."""

    def __init__(self, message: str, *, code: str | None = None, status: int | None = None) -> None:
        super().__init__(message, code=code)
        self.status = status


class RequestError(ClientError):
    """The server refused one command; the session lives on."""


class SessionEndedError(ClientError):
    """The session is over. ``reason`` is the server's, or ``connection_lost``, or ``replaced``."""

    def __init__(self, message: str, *, reason: str, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.reason = reason
