"""Structured logs that hold no audio, no transcripts and no keys.

Rules
- A library is silent until the program that uses it asks for logs: `configure_logging` is that.
- Every logger comes from `init_logger`, and every record passes its filter before any handler sees it: bytes and
  arrays become their size, values of secret keys and long base64-like runs become a mark. This holds for the
  message, its arguments, the extra fields and the traceback.
- Facts go into `extra` (`logger.info("session opened", extra={"session_id": ..., "model": ...})`), so that they
  stay fields in JSON and can be searched for.
"""

import logging
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, TextIO

import msgspec

ROOT: Final = "duologue"
REDACTED: Final = "[redacted]"
SECRET_KEYS: Final = frozenset({"audio", "transcript", "authorization", "api_key", "token"})

_LONGEST_RUN: Final = 80  # longer than any id or digest in hexadecimal, shorter than 2 ms of speech
_LONGEST_TEXT: Final = 4_000
_ENCODED: Final = re.compile(rf"[A-Za-z0-9+/_-]{{{_LONGEST_RUN},}}={{0,2}}")
_QUOTED: Final = r"""b?'(?:[^'\\]|\\.)*'?|b?"(?:[^"\\]|\\.)*"?"""
_BYTES: Final = re.compile(r"""\b(?:bytearray\()?b(?:'(?:[^'\\]|\\.)*'?|"(?:[^"\\]|\\.)*"?)\)?""")
_BEARER: Final = re.compile(r"\bbearer\s+\S+|\bsk-[A-Za-z0-9_-]{8,}", re.IGNORECASE)
# A line of speech or of a header has blanks in it, so without quotes everything to the end of the line goes.
_LINE_PAIR: Final = re.compile(
    rf"""\b((?:\w+_)?(?:transcript|authorization)["']?\s*[:=]\s*)(?:{_QUOTED}|[^\n]+)""", re.IGNORECASE
)
_WORD_PAIR: Final = re.compile(
    rf"""\b((?:\w+_)?(?:audio|api_key|token)["']?\s*[:=]\s*)(?!\d{{1,9}}\b)(?:{_QUOTED}|[^\s,;)}}\]]+)""",
    re.IGNORECASE,
)

_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message"}


def redact(value: object) -> object:
    """`value` in a form that may be logged: same shape, without samples, speech or secrets."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return _redact_text(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{memoryview(value).nbytes} bytes>"
    if isinstance(value, Mapping):
        return {str(key): _redact_field(str(key), item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [redact(item) for item in value]
    shape = getattr(value, "shape", None)
    if shape is not None and hasattr(value, "dtype"):
        return f"<array of shape {shape}>"
    return _redact_text(str(value))


def _redact_field(key: str, value: object) -> object:
    name = key.lower().replace("-", "_")
    secret = name in SECRET_KEYS or any(name.endswith("_" + one) for one in SECRET_KEYS)
    if not secret or value is None or isinstance(value, bool | int | float):  # a count of bytes is no audio
        return redact(value)
    return f"<{memoryview(value).nbytes} bytes>" if isinstance(value, bytes | bytearray | memoryview) else REDACTED


def _redact_text(text: str) -> str:
    length = len(text)
    if length > _LONGEST_TEXT:
        text = text[:_LONGEST_TEXT]
    text = _LINE_PAIR.sub(rf"\1{REDACTED}", text)
    text = _WORD_PAIR.sub(rf"\1{REDACTED}", text)
    text = _BYTES.sub("<bytes>", text)
    text = _BEARER.sub(REDACTED, text)
    text = _ENCODED.sub(lambda found: f"<{len(found.group())} characters>", text)
    return text if length <= _LONGEST_TEXT else f"{text}... <{length} characters>"


class RedactingFilter(logging.Filter):
    """Rewrites each record in place, before any handler sees it; lets every record through."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg = _redact_text(_message(record))
        record.args = None
        for key in record.__dict__.keys() - _STANDARD:
            record.__dict__[key] = _redact_field(key, record.__dict__[key])
        if record.exc_info and record.exc_info[0] is not None:
            text = logging.Formatter().formatException(record.exc_info)
            record.exc_text = "\n".join(_redact_text(line) for line in text.split("\n"))
            record.exc_info = None  # a handler that formats it again would show what was taken out
        return True


def _message(record: logging.LogRecord) -> str:
    template = str(record.msg)
    if not record.args:
        return template
    if isinstance(record.args, Mapping):
        safe: object = redact(record.args)
    else:
        safe = tuple(redact(item) for item in record.args)
    try:
        return template % safe
    except (TypeError, ValueError, KeyError):
        # The standard handler would print the raw arguments to explain this.
        return f"{template} (arguments do not fit the message)"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message, then the extra fields by name."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update(_fields(record))
        if record.exc_text:
            line["exception"] = record.exc_text
        return msgspec.json.encode(line, enc_hook=repr).decode()


class HumanFormatter(logging.Formatter):
    """For a terminal: time, level, logger, session, message, other fields as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record)
        session = fields.pop("session_id", None)
        parts = [_time(record).astimezone().strftime("%H:%M:%S.%f")[:-3], f"{record.levelname:<7}", record.name]
        if session is not None:
            parts.append(f"[{session}]")
        parts.append(record.getMessage())
        parts.extend(f"{name}={value}" for name, value in fields.items())
        line = " ".join(parts)
        return f"{line}\n{record.exc_text}" if record.exc_text else line


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in record.__dict__.items() if key not in _STANDARD}


_FILTER: Final = RedactingFilter()
logging.getLogger(ROOT).addHandler(logging.NullHandler())


def init_logger(name: str) -> logging.Logger:
    """The logger for a module; pass `__name__`. Its records are redacted, whoever handles them."""
    logger = logging.getLogger(name if name == ROOT or name.startswith(ROOT + ".") else f"{ROOT}.{name}")
    if _FILTER not in logger.filters:
        logger.addFilter(_FILTER)
    return logger


def configure_logging(level: str = "info", json: bool = False, stream: TextIO | None = None) -> None:
    """Write this package's logs to `stream` (standard error by default). Calling again replaces the set-up.

    level: "debug", "info", "warning" or "error"; ValueError for another. json: one JSON object a line.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None or level.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise ValueError(f"log level {level!r} is not known: use debug, info, warning or error")
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if json else HumanFormatter())
    root = logging.getLogger(ROOT)
    for old in list(root.handlers):
        if isinstance(old, logging.StreamHandler) and isinstance(old.formatter, JsonFormatter | HumanFormatter):
            root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(number)
    root.propagate = False
