"""The error tree, and the one table of codes that every dialect and the documentation are projected from.

Rules kept here:

* a cause has one :class:`ErrorCode`; a code has exactly one row in :data:`ERRORS`, which fixes whose fault it is,
  the wire class and whether a retry can help;
* where OpenAI's GA dialect has a name of its own for a cause, the row holds it (``ga_code``): the core never knows;
* a server fault is never reported as a client error.
"""

from __future__ import annotations

import enum

import msgspec


class Fault(enum.Enum):
    """Whose fault an error is, and therefore what ends with it."""

    CLIENT = "client"  # the command is refused, the session lives
    ADMISSION = "admission"  # refused before any state exists
    SESSION = "session"  # this session ends
    STAGE = "stage"  # this response fails


class ErrorCode(enum.StrEnum):
    """Every code that Duologue emits."""

    # shape of what the client sent
    BAD_EVENT = "bad_event"
    INVALID_JSON = "invalid_json"
    UNKNOWN_EVENT = "unknown_event"
    EVENT_TOO_LARGE = "event_too_large"
    BAD_AUDIO = "bad_audio"
    UNSUPPORTED_AUDIO_FORMAT = "unsupported_audio_format"
    INVALID_INPUT_MODALITY = "invalid_input_modality"
    MISSING_ITEM_ID = "missing_item_id"
    CONFIG_TIMEOUT = "config_timeout"
    NATIVE_TEXT_APPEND_UNSUPPORTED = "native_text_append_unsupported"
    UNSUPPORTED = "unsupported"
    # session and configuration
    SESSION_EXISTS = "session_exists"
    SESSION_CLOSED = "session_closed"
    UNKNOWN_SESSION = "unknown_session"
    INVALID_SESSION_CONFIG = "invalid_session_config"
    INVALID_RUNTIME_CONFIG = "invalid_duplex_runtime_config"
    UNSUPPORTED_TURN_DETECTION = "unsupported_turn_detection"
    MODEL_UPDATE_UNSUPPORTED = "model_update_unsupported"
    VOICE_UPDATE_UNSUPPORTED = "voice_update_after_audio_unsupported"
    MODEL_NOT_FOUND = "model_not_found"
    # turns and responses
    INPUT_AUDIO_BUFFER_EMPTY = "input_audio_buffer_empty"
    RESPONSE_ALREADY_ACTIVE = "response_already_active"
    RESPONSE_NOT_ACTIVE = "response_not_active"
    RESPONSE_CREATE_WITHOUT_INPUT = "response_create_without_input"
    TEXT_ONLY_TURN_UNSUPPORTED = "text_only_turn_unsupported"
    UNSUPPORTED_RESPONSE_OPTIONS = "unsupported_native_response_options"
    BARGE_IN_UNSUPPORTED = "barge_in_unsupported"
    # items and playback
    ITEM_NOT_FOUND = "item_not_found"
    ITEM_EXISTS = "item_exists"
    ITEM_RETRIEVE_NOT_FOUND = "item_retrieve_not_found"
    INVALID_ITEM = "invalid_item"
    ITEM_NOT_TRUNCATABLE = "item_not_truncatable"
    TOOLS_UNSUPPORTED = "tools_unsupported"
    IMAGES_UNSUPPORTED = "images_unsupported"
    TOOL_CALL_UNKNOWN = "tool_call_unknown"
    TOOL_CALL_CANCELLED = "tool_call_cancelled"
    TOOL_RESULT_DUPLICATE = "tool_result_duplicate"
    TOOL_RESULT_TIMEOUT = "tool_result_timeout"
    INVALID_FUNCTION_CALL = "invalid_function_call"
    PLAYBACK_ITEM_MISMATCH = "playback_item_mismatch"
    PLAYBACK_ITEM_NOT_FOUND = "playback_item_not_found"
    # resume
    SESSION_RESUME_CONFLICT = "session_resume_conflict"
    SESSION_RESUME_EXPIRED = "session_resume_expired"
    INVALID_SESSION_RESUME = "invalid_session_resume"
    UNSUPPORTED_SESSION_RESUME = "unsupported_session_resume"
    INVALID_RESUME_TOKEN = "invalid_resume_token"
    INVALID_EVENT_ACK = "invalid_event_ack"
    # limits
    RESOURCE_EXHAUSTED = "resource_exhausted"
    INPUT_BACKPRESSURE = "input_backpressure"
    OUTPUT_BACKPRESSURE = "output_backpressure"
    RATE_LIMITED = "rate_limited"
    # access
    INVALID_API_KEY = "invalid_api_key"
    ORIGIN_NOT_ALLOWED = "origin_not_allowed"
    # server faults
    INTERNAL_ERROR = "internal_error"
    RUNTIME_APPEND_FAILED = "runtime_append_failed"
    RUNTIME_STREAM_FAILED = "runtime_data_plane_stream_failed"
    RUNTIME_ABORT_FAILED = "runtime_abort_failed"
    RUNTIME_PLUGIN_FAILED = "runtime_plugin_failed"
    COMMIT_ABORTED = "commit_aborted"
    SESSION_UPDATE_ABORTED = "session_update_aborted"
    SERVER_VAD_UNAVAILABLE = "server_vad_unavailable"
    SEMANTIC_VAD_UNAVAILABLE = "semantic_vad_unavailable"
    REPLICA_UNAVAILABLE = "replica_unavailable"
    CONTEXT_FULL = "context_full"
    STALE_FENCE = "stale_fence"
    TIMEOUT = "timeout"
    ENGINE_DEAD = "engine_dead"
    SHUTTING_DOWN = "shutting_down"
    # requests of the turn-based engine
    REQUEST_INVALID = "request_invalid"
    REQUEST_ABORTED = "request_aborted"
    PAYLOAD_UNENCODABLE = "payload_unencodable"
    EMPTY_HANDOFF = "empty_handoff"


class ErrorSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table: what a code means wherever it appears."""

    fault: Fault
    wire_type: str  # OpenAI's `error.type`
    http_status: int
    retryable: bool = False
    ga_code: str | None = None  # OpenAI's own name for this cause, where it has one
    summary: str = ""


def _client(summary: str, *, ga: str | None = None, status: int = 400, retryable: bool = False) -> ErrorSpec:
    return ErrorSpec(
        fault=Fault.CLIENT,
        wire_type="invalid_request_error",
        http_status=status,
        ga_code=ga,
        retryable=retryable,
        summary=summary,
    )


def _limit(summary: str, *, fault: Fault = Fault.CLIENT, retryable: bool = True) -> ErrorSpec:
    return ErrorSpec(fault=fault, wire_type="rate_limit_error", http_status=429, retryable=retryable, summary=summary)


def _server(summary: str, *, fault: Fault = Fault.STAGE, status: int = 500, retryable: bool = False) -> ErrorSpec:
    return ErrorSpec(fault=fault, wire_type="server_error", http_status=status, retryable=retryable, summary=summary)


_C = ErrorCode
ERRORS: dict[ErrorCode, ErrorSpec] = {
    _C.BAD_EVENT: _client("The event lacks a field or a field has the wrong type."),
    _C.INVALID_JSON: _client("The frame is not valid JSON, or is not a JSON object."),
    _C.UNKNOWN_EVENT: _client("The event type is not one that this dialect knows."),
    _C.EVENT_TOO_LARGE: _client("The event is larger than the limit of one event.", status=413),
    _C.BAD_AUDIO: _client("The audio payload cannot be decoded."),
    _C.UNSUPPORTED_AUDIO_FORMAT: _client("The audio format or rate is not supported."),
    _C.INVALID_INPUT_MODALITY: _client("The model does not take this kind of input."),
    _C.MISSING_ITEM_ID: _client("The event must name an item."),
    _C.CONFIG_TIMEOUT: _client("No first message arrived in time.", status=408),
    _C.NATIVE_TEXT_APPEND_UNSUPPORTED: _client("Text cannot be streamed into this session."),
    _C.UNSUPPORTED: _client("The server does not offer this."),
    _C.SESSION_EXISTS: _client("A session with this id exists.", status=409),
    _C.SESSION_CLOSED: _client("The session is closing or closed.", status=409),
    _C.UNKNOWN_SESSION: _client("There is no such session.", status=404),
    _C.INVALID_SESSION_CONFIG: _client("A session setting is not valid."),
    _C.INVALID_RUNTIME_CONFIG: _client("The model refuses this configuration."),
    _C.UNSUPPORTED_TURN_DETECTION: _client("The turn detection settings are not supported."),
    _C.MODEL_UPDATE_UNSUPPORTED: _client("The model of a session cannot change."),
    _C.VOICE_UPDATE_UNSUPPORTED: _client(
        "The voice cannot change once the assistant has spoken.", ga="cannot_update_voice"
    ),
    _C.MODEL_NOT_FOUND: _client("The server does not serve this model.", status=404),
    _C.INPUT_AUDIO_BUFFER_EMPTY: _client("There is too little audio to commit.", ga="input_audio_buffer_commit_empty"),
    _C.RESPONSE_ALREADY_ACTIVE: _client(
        "A response is already in progress.", ga="conversation_already_has_active_response"
    ),
    _C.RESPONSE_NOT_ACTIVE: _client("No such response is in progress.", ga="response_cancel_not_active"),
    _C.RESPONSE_CREATE_WITHOUT_INPUT: _client("There is nothing to answer."),
    _C.TEXT_ONLY_TURN_UNSUPPORTED: _client("The model needs audio in every turn."),
    _C.UNSUPPORTED_RESPONSE_OPTIONS: _client("The model cannot change these options for one response."),
    _C.BARGE_IN_UNSUPPORTED: _client("The model cannot be interrupted."),
    _C.ITEM_NOT_FOUND: _client("There is no such item.", ga="item_not_found", status=404),
    _C.ITEM_EXISTS: _client("An item with this id exists.", ga="item_create_duplicate_item_id", status=409),
    _C.ITEM_RETRIEVE_NOT_FOUND: _client(
        "There is no such item to retrieve.", ga="item_retrieve_invalid_item_id", status=404
    ),
    _C.INVALID_ITEM: _client("The item cannot be added to the conversation."),
    _C.ITEM_NOT_TRUNCATABLE: _client("Only audio that the assistant spoke can be truncated."),
    _C.TOOLS_UNSUPPORTED: _client("The model cannot call functions."),
    _C.IMAGES_UNSUPPORTED: _client("The model takes no images."),
    _C.TOOL_CALL_UNKNOWN: _client("There is no such function call in the conversation.", status=404),
    _C.TOOL_CALL_CANCELLED: _client("The function call was cancelled; its result is not used.", status=409),
    _C.TOOL_RESULT_DUPLICATE: _client("The function call has its result already.", status=409),
    _C.TOOL_RESULT_TIMEOUT: _client("The result of the function call did not come in time.", status=408),
    _C.INVALID_FUNCTION_CALL: _server("The model called a function in a way that nobody can answer."),
    _C.PLAYBACK_ITEM_MISMATCH: _client("The acknowledged item does not belong to the acknowledged response."),
    _C.PLAYBACK_ITEM_NOT_FOUND: _client("The acknowledged item is not known.", status=404),
    _C.SESSION_RESUME_CONFLICT: _client("Another connection resumed this session first.", status=409),
    _C.SESSION_RESUME_EXPIRED: _client("The session no longer exists.", status=410),
    _C.INVALID_SESSION_RESUME: _client("The resume request lacks a field."),
    _C.UNSUPPORTED_SESSION_RESUME: _client("This session cannot be resumed."),
    _C.INVALID_RESUME_TOKEN: ErrorSpec(
        fault=Fault.CLIENT,
        wire_type="authentication_error",
        http_status=401,
        summary="The resume token is not the current one.",
    ),
    _C.INVALID_EVENT_ACK: _client("The acknowledged sequence number was never sent."),
    _C.RESOURCE_EXHAUSTED: _limit("All session slots are taken.", fault=Fault.ADMISSION),
    _C.INPUT_BACKPRESSURE: _limit("The session holds as much unprocessed input as it may."),
    _C.OUTPUT_BACKPRESSURE: _limit("The client does not read its output.", fault=Fault.SESSION, retryable=False),
    _C.RATE_LIMITED: _limit("The client asks for more than it may; the message says of what."),
    _C.INVALID_API_KEY: ErrorSpec(
        fault=Fault.ADMISSION,
        wire_type="authentication_error",
        http_status=401,
        summary="The API key is missing or wrong.",
    ),
    _C.ORIGIN_NOT_ALLOWED: ErrorSpec(
        fault=Fault.ADMISSION,
        wire_type="permission_error",
        http_status=403,
        summary="The page's origin is not on the allow-list.",
    ),
    _C.INTERNAL_ERROR: _server("A fault in the server ended this session.", fault=Fault.SESSION),
    _C.RUNTIME_APPEND_FAILED: _server("The model did not take the input."),
    _C.RUNTIME_STREAM_FAILED: _server("A model stage failed."),
    _C.RUNTIME_ABORT_FAILED: _server("A model stage could not be stopped."),
    _C.RUNTIME_PLUGIN_FAILED: _server("The model plugin failed.", fault=Fault.SESSION),
    _C.COMMIT_ABORTED: _server(
        "The commit, or the result of a function, was not used because input before it failed.",
        fault=Fault.CLIENT,
        retryable=True,
    ),
    _C.SESSION_UPDATE_ABORTED: _server(
        "The settings were not changed because input before the change failed.", fault=Fault.CLIENT, retryable=True
    ),
    _C.SERVER_VAD_UNAVAILABLE: _server("Speech detection failed and is now off.", fault=Fault.CLIENT),
    _C.SEMANTIC_VAD_UNAVAILABLE: _server("Turn-end detection failed and is now off.", fault=Fault.CLIENT),
    _C.REPLICA_UNAVAILABLE: _server(
        "The worker that served this session is gone.", fault=Fault.SESSION, status=503, retryable=True
    ),
    _C.CONTEXT_FULL: _server(
        "The model's context is full and cannot be rolled over.", fault=Fault.SESSION, status=503, retryable=True
    ),
    _C.STALE_FENCE: _server("The operation belongs to an epoch that has ended.", fault=Fault.CLIENT, status=409),
    _C.TIMEOUT: _server("The operation took too long.", status=504, retryable=True),
    _C.ENGINE_DEAD: _server("The engine has stopped.", fault=Fault.SESSION, status=503),
    _C.SHUTTING_DOWN: _server("The server is shutting down.", fault=Fault.ADMISSION, status=503, retryable=True),
    _C.REQUEST_INVALID: _client("The request is not valid for this pipeline."),
    _C.REQUEST_ABORTED: _client("The request was aborted.", status=499),
    _C.PAYLOAD_UNENCODABLE: _client("The payload cannot be sent to the stage."),
    _C.EMPTY_HANDOFF: _server("A stage produced nothing for the next one."),
}


class DuologueError(Exception):
    """Base of every error that has a code.

    ``message`` is for people: what was wrong, with which value, and what to do. ``param`` names the offending field in
    the client's terms, if any.
    """

    def __init__(self, code: ErrorCode, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param

    @property
    def spec(self) -> ErrorSpec:
        return ERRORS[self.code]


class ClientFault(DuologueError):
    """The client's command is refused; the session lives on unchanged."""


class AdmissionFault(DuologueError):
    """Refused before any state exists."""


class SessionFault(DuologueError):
    """This session ends; no other notices."""


class StageFault(DuologueError):
    """A stage failed a request: this response (or turn request) fails."""
