"""Every limit of the engine and the server: where its value is, what happens at it, what shows it, and the test of it.

``gen_docs.py`` writes the page from this table; ``tests/arch/test_limits.py`` checks that each value, metric and test
exists, and that no limit of the configuration or of a module is missing here.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Limit:
    """``value``: ``module:CONSTANT`` or ``module:Struct.field``. ``metric``: names of ``/metrics``.

    ``test``: ``file::name`` below tests/; it tries one below, at, and one above.
    """

    value: str
    unit: str
    at: str
    metric: str
    test: str

    @property
    def name(self) -> str:
        """What it is called on the page."""
        return self.value.partition(":")[2].rpartition(".")[2]

    def number(self) -> object:
        """The value, or the default of the setting."""
        module, _, path = self.value.partition(":")
        thing: object = importlib.import_module(module)
        owner, _, attribute = path.rpartition(".")
        if owner:
            thing = getattr(thing, owner)()
        return getattr(thing, attribute)


_RUNTIME: Final = "duologue.config.stage_config:DuplexSessionRuntimeConfig."
_CONNECTION: Final = "duologue.server.registry:ConnectionLimits."
_SERVER: Final = "duologue.config.service:ServerLimits."
_TURNS: Final = "duologue.config.turns:TurnLimits."
_CORE: Final = "duologue.engine.duplex.core."
_IN_CORE: Final = "unit/core/test_limits.py::"
_IN_SERVER: Final = "unit/server/test_limits.py::"
_IN_SESSION: Final = "unit/session/test_limits.py::"
_TRAFFIC: Final = "unit/server/turns/test_traffic.py::"
_IN_TURNS: Final = "unit/server/turns/test_limits.py::"
_TURN_CODE: Final = "duologue.server.turns."


def _acted(name: str) -> str:
    return f'duologue_connection_limit_total{{limit="{name}"}}'


SESSION: Final = (
    Limit(
        _RUNTIME + "max_sessions",
        "sessions",
        "the next open is refused (`resource_exhausted`)",
        'duologue_slots{state="used"}',
        _IN_SESSION + "test_sessions",
    ),
    Limit(
        _RUNTIME + "max_pending_input_bytes_per_session",
        "bytes",
        "the audio of the oldest turns that nobody asked an answer for is forgotten (`input_reclaimed`); then the append "
        "is refused whole (`input_backpressure`), once per episode and always if it has an event id",
        'duologue_held{what="input_bytes"}, duologue_limit_acted{limit="input"}',
        _IN_CORE + "test_input_bytes",
    ),
    Limit(
        _RUNTIME + "max_pending_input_bytes_per_session",
        "bytes of events",
        "what waits to be decoded behind a long append has the same bound; the next event is refused "
        "(`input_backpressure`)",
        'duologue_held{what="waiting_command_bytes"}',
        _IN_SESSION + "test_waiting_commands",
    ),
    Limit(
        _RUNTIME + "max_pending_turns_per_session",
        "answers",
        "a commit, `response.create` or detected turn that would have to wait is refused (`input_backpressure`), the "
        "detected turn with its audio",
        'duologue_held{what="turns"}, duologue_limit_acted{limit="turns"}',
        _IN_CORE + "test_turns",
    ),
    Limit(
        _RUNTIME + "turn_burst",
        "turns at once",
        "a commit or `response.create` is refused (`rate_limited`) and tells when the next one is accepted; nothing is "
        "lost. Turns that detection ends are not counted, cancels are never refused",
        'duologue_errors_total{code="rate_limited"}',
        "unit/core/test_rate.py::test_a_burst_is_accepted_and_what_exceeds_it_is_refused",
    ),
    Limit(
        _RUNTIME + "turns_per_minute",
        "turns a minute",
        "the same, on the whole",
        'duologue_errors_total{code="rate_limited"}',
        "unit/core/test_rate.py::test_a_burst_is_accepted_and_what_exceeds_it_is_refused",
    ),
    Limit(
        _CORE + "conversation:MAX_IMAGES",
        "images of an item",
        "the item is refused (`invalid_item`)",
        'duologue_errors_total{code="invalid_item"}',
        "unit/core/test_images.py::test_so_many_pictures_may_an_item_have",
    ),
    Limit(
        _RUNTIME + "max_image_bytes_per_item",
        "bytes of data URLs",
        "the item is refused (`invalid_item`)",
        'duologue_errors_total{code="invalid_item"}',
        "unit/core/test_images.py::test_so_large_may_the_pictures_of_an_item_be",
    ),
    Limit(
        _RUNTIME + "max_image_bytes_per_session",
        "bytes of data URLs",
        "an item with images is refused (`input_backpressure`) until some are deleted",
        'duologue_errors_total{code="input_backpressure"}',
        "unit/core/test_images.py::test_so_large_may_the_pictures_of_a_conversation_be",
    ),
    Limit(
        _RUNTIME + "max_tool_calls_per_session",
        "calls",
        "records of answered calls are forgotten, oldest first; if all wait, one more call is refused "
        "(`resource_exhausted`), as is one more of a response outside the conversation",
        "duologue_tool_calls_total",
        "unit/core/test_tools.py::test_the_ledger_holds_so_many_calls_that_wait",
    ),
    Limit(
        _RUNTIME + "tool_result_timeout_s",
        "s",
        "the call counts as unanswered (`tool_result_timeout`); a result that comes later is refused",
        'duologue_errors_total{code="tool_result_timeout"}',
        "unit/core/test_tools.py::test_a_result_at_the_deadline_is_late",
    ),
    Limit(
        _CORE + "tools:MAX_ARGUMENT_CHARS",
        "characters",
        "a call with longer arguments is an error (`invalid_function_call`)",
        'duologue_errors_total{code="invalid_function_call"}',
        _IN_CORE + "test_argument_chars",
    ),
    Limit(
        _RUNTIME + "max_pending_output_events_per_session",
        "events",
        "audio waits for the socket; anything else ends the session (`output_backpressure`), for which 8 events are in "
        "reserve",
        'duologue_held{what="untaken_events"}, duologue_limit_acted{limit="output"}',
        "unit/core/test_pacing.py::test_events_that_wait_to_be_read_are_bounded",
    ),
    Limit(
        _RUNTIME + "max_pending_output_bytes_per_session",
        "bytes",
        "the same, with 64 KiB in reserve; one event alone always fits",
        'duologue_held{what="untaken_bytes"}, duologue_limit_acted{limit="output"}',
        _IN_CORE + "test_output_bytes",
    ),
    Limit(
        _RUNTIME + "send_ahead_ms",
        "ms",
        "audio waits",
        'duologue_held{what="backlog_ms"}',
        "unit/core/test_pacing.py::test_at_most_so_much_leaves_before_it_is_played",
    ),
    Limit(
        _RUNTIME + "max_backlog_ms",
        "ms",
        "the stages are paused until half of it is left; behind a paced edge at most a segment more is made",
        'duologue_held{what="backlog_ms"}, duologue_limit_acted{limit="backlog"}',
        _IN_CORE + "test_backlog",
    ),
    Limit(
        "duologue.engine.delivery:MAX_HELD_PIECES",
        "pieces",
        "one more piece of a paused request, or behind a paced edge, fails the request (`output_backpressure`)",
        'duologue_held{what="pieces"}',
        "unit/engine/test_pause.py::test_so_many_pieces_wait_behind_a_paced_edge_and_one_more_fails_the_request",
    ),
    Limit(
        _RUNTIME + "max_items_per_session",
        "items",
        "the oldest item is forgotten, never the one just added; a longer `response.input` is refused (`invalid_item`)",
        'duologue_held{what="items"}, duologue_limit_acted{limit="items"}',
        _IN_CORE + "test_items",
    ),
    Limit(
        _RUNTIME + "max_history_chars",
        "characters",
        "the oldest items are left out of the prompt; one longer item is refused (`invalid_item`)",
        'duologue_limit_acted{limit="history_chars"}',
        _IN_CORE + "test_history_chars",
    ),
    Limit(
        _CORE + "history:HELD_PROMPTS",
        "times `max_history_chars`",
        "the oldest items are forgotten when the texts, arguments and results of all would be longer",
        *('duologue_held{what="items"}, duologue_limit_acted{limit="items"}', _IN_CORE + "test_held_prompts"),
    ),
    Limit(
        _CORE + "heard:MAX_MARKS",
        "marks per answer",
        "every other mark goes: between two marks the text counts as spread evenly",
        'duologue_limit_acted{limit="marks"}',
        "unit/core/test_heard.py::test_so_many_marks_are_kept_and_then_every_other_one",
    ),
    Limit(
        _CORE + "barrier:MAX_WAITING_COMMANDS",
        "commands that wait for the input before them",
        "the next commit, `session.update` or result of a function is refused (`input_backpressure`)",
        'duologue_held{what="commands"}, duologue_limit_acted{limit="commands"}',
        _IN_CORE + "test_waiting_commands",
    ),
    Limit(
        _RUNTIME + "max_turn_ms",
        "ms",
        "the turn ends; speech that goes on is the next turn",
        'duologue_limit_acted{limit="turn_length"}',
        _IN_CORE + "test_turn_length",
    ),
    Limit(
        _RUNTIME + "starvation_ms",
        "ms without input",
        "a turn in mid-speech ends (twice the longest of the last appends, if that is more)",
        'duologue_limit_acted{limit="starvation"}',
        _IN_CORE + "test_starvation",
    ),
    Limit(
        _CORE + "submission:TRANSCRIPT_WAIT_S",
        "s",
        "the answer begins without the words of earlier turns",
        'duologue_limit_acted{limit="transcript_wait"}',
        _IN_CORE + "test_transcript_wait",
    ),
    Limit(
        "duologue.engine.duplex.plugin:ModelCapabilities.max_silence_units",
        "units of silence",
        "the last one asks the model to listen; then `ResponseListen` (`continuation_limit`) and the answer ends",
        'duologue_limit_acted{limit="silence_units"}',
        _IN_CORE + "test_silence_units",
    ),
    Limit(
        _CORE + "gauge:ROLL_OVER_AT",
        "of a resident model's context",
        "it is rolled over in the next pause, if the model `compacts`; from `URGENT_AT` (0.9) on the session of another ends "
        "(`context_full`)",
        'duologue_limit_acted{limit="context"}',
        "unit/core/test_compaction.py::test_in_a_pause_it_is_rolled_over_from_three_quarters_on",
    ),
    Limit(
        _CORE + "turns:MIN_COMMIT_MS",
        "ms",
        "a shorter explicit commit is refused (`input_audio_buffer_empty`)",
        'duologue_errors_total{code="input_audio_buffer_empty"}',
        _IN_CORE + "test_commit_length",
    ),
    Limit(
        _RUNTIME + "idle_ttl_s",
        "s",
        "the session expires: so long the client did nothing, the model said nothing, and nothing was submitted or played",
        "duologue_slots",
        "unit/core/test_lifecycle.py::test_a_lease_that_is_silent_for_its_idle_time_is_over",
    ),
    Limit(
        _RUNTIME + "disconnect_grace_s",
        "s",
        "a session without a connection expires",
        "duologue_slots",
        "unit/core/test_lifecycle.py::test_a_lease_that_is_detached_for_its_grace_is_over",
    ),
    Limit(
        _RUNTIME + "max_waiting_sessions",
        "sessions",
        "one more that finds no slot is refused (`resource_exhausted`); none: there is no waiting room",
        'duologue_slots{state="waited_for"}',
        "unit/session/test_waiting.py::test_the_room_is_bounded",
    ),
    Limit(
        _RUNTIME + "max_wait_s",
        "s",
        "the wait for a slot ends with a refusal (`resource_exhausted`)",
        'duologue_errors_total{code="resource_exhausted"}',
        "unit/session/test_waiting.py::test_nobody_waits_longer_than_the_longest_wait",
    ),
    Limit(
        _RUNTIME + "rebuild_timeout_s",
        "s",
        "a session that lost a worker ends (`replica_unavailable`) if it cannot do without the place it waited for",
        'duologue_errors_total{code="replica_unavailable"}',
        "unit/core/test_rebuild.py::test_the_wait_is_bounded_and_a_resident_session_ends_then",
    ),
)

CONNECTION: Final = (
    Limit(
        _SERVER + "max_frame_bytes",
        "bytes",
        "the connection closes (1009)",
        _acted("max_frame_bytes"),
        "integration/server/test_sockets.py::"
        "test_an_event_over_the_limit_is_an_error_and_a_frame_over_the_cap_closes_1009",
    ),
    Limit(
        _SERVER + "max_event_bytes",
        "bytes",
        "the event is refused before it is decoded (`event_too_large`)",
        'duologue_errors_total{code="event_too_large"}',
        "unit/wire/test_client_events.py::test_the_limit_is_in_bytes_of_the_whole_event",
    ),
    Limit(
        "duologue.wire.decoder:MAX_COMMAND_BYTES",
        "bytes",
        "an event that is not audio is refused (`event_too_large`)",
        'duologue_errors_total{code="event_too_large"}',
        _IN_SERVER + "test_command_bytes",
    ),
    Limit(
        "duologue.wire.objects:LONGEST_NAME",
        "characters",
        "an event with a longer id or name is refused (`bad_event`)",
        'duologue_errors_total{code="bad_event"}',
        _IN_SERVER + "test_name_chars",
    ),
    Limit(
        "duologue.server.settings:MAX_INSTRUCTIONS_CHARS",
        "characters",
        "the update is refused (`invalid_session_config`)",
        'duologue_errors_total{code="invalid_session_config"}',
        _IN_SERVER + "test_settings_chars",
    ),
    Limit(
        "duologue.server.settings:MAX_TOOLS_CHARS",
        "characters",
        "the update is refused (`invalid_session_config`)",
        'duologue_errors_total{code="invalid_session_config"}',
        _IN_SERVER + "test_settings_chars",
    ),
    Limit(
        "duologue.server.settings:MAX_EXTRA_BYTES",
        "bytes",
        "the update is refused (`invalid_session_config`)",
        'duologue_errors_total{code="invalid_session_config"}',
        _IN_SERVER + "test_extra_bytes",
    ),
    Limit(
        _CONNECTION + "max_early_events",
        "events",
        "while the session opens, nothing more is read; if it waits for a slot, more is refused (`input_backpressure`)",
        _acted("max_early_events"),
        _IN_SERVER + "test_early_events",
    ),
    Limit(
        _CONNECTION + "max_early_bytes", "bytes", "the same", _acted("max_early_bytes"), _IN_SERVER + "test_early_bytes"
    ),
    Limit(
        _CONNECTION + "max_local_frames",
        "frames",
        "while so many errors of the server's own wait for the socket, nothing more is read",
        _acted("max_local_frames"),
        _IN_SERVER + "test_local_frames",
    ),
    Limit(
        _SERVER + "sessions_per_key",
        "sessions",
        "the next one is refused (`rate_limited`)",
        'duologue_errors_total{code="rate_limited"}',
        _IN_SERVER + "test_sessions_per_key",
    ),
    Limit(
        _RUNTIME + "resume_replay_max_bytes_per_session",
        "bytes",
        "the oldest frames leave the journal; a resume that needs them is told so (`journal_overflow`)",
        "duologue_journal_bytes, duologue_journal_dropped_frames",
        _IN_SERVER + "test_journal_bytes",
    ),
    Limit(
        _RUNTIME + "resume_replay_ttl_s",
        "s",
        "older frames leave the journal (`journal_gap`)",
        "duologue_journal_bytes",
        _IN_SERVER + "test_journal_age",
    ),
    Limit(
        _SERVER + "first_message_timeout_s",
        "s",
        "an error (`config_timeout`), and the connection closes",
        'duologue_errors_total{code="config_timeout"}',
        "unit/server/test_connection.py::test_no_first_message_in_time_is_an_error_and_a_close",
    ),
)


def _refused(value: str, unit: str, test: str) -> Limit:
    """A bound on what a request may hold."""
    return Limit(value, unit, "400 (`request_invalid`)", "duologue_http_requests_total", test)


REQUESTS: Final = (
    Limit(
        _TURNS + "max_running",
        "requests",
        "the next one waits",
        'duologue_http_active{state="running"}',
        _IN_TURNS + "test_places",
    ),
    Limit(
        _TURNS + "max_waiting",
        "requests",
        "the next one gets 429",
        'duologue_http_active{state="waiting"}',
        _TRAFFIC + "test_more_requests_than_places_are_refused_and_the_rest_is_served_in_order",
    ),
    Limit(
        _TURNS + "request_burst",
        "requests at once",
        "the next one gets 429, and when to try again",
        "duologue_http_requests_total",
        "unit/server/turns/test_gate.py::test_so_many_requests_in_a_span_and_no_more",
    ),
    Limit(
        _TURNS + "requests_per_minute",
        "requests a minute",
        "the same, on the whole",
        "duologue_http_requests_total",
        "unit/server/turns/test_gate.py::test_so_many_requests_in_a_span_and_no_more",
    ),
    Limit(
        _TURNS + "max_body_bytes",
        "bytes",
        "413 (`event_too_large`)",
        "duologue_http_requests_total",
        _TRAFFIC + "test_a_body_is_taken_up_to_the_limit",
    ),
    Limit(
        _TURNS + "max_held_bytes",
        "bytes",
        "429 (`input_backpressure`)",
        "duologue_http_held_bytes",
        _IN_TURNS + "test_held_bytes",
    ),
    _refused(_TURNS + "max_speech_chars", "characters", _TRAFFIC + "test_a_text_to_be_read_aloud_has_a_limit"),
    Limit(
        _TURNS + "pause_bytes",
        "bytes",
        "the stages are paused",
        "duologue_http_active",
        _IN_TURNS + "test_unread_bytes_that_pause_the_stages",
    ),
    Limit(
        _TURNS + "max_unread_bytes",
        "bytes",
        "the request fails",
        "duologue_http_requests_total",
        _IN_TURNS + "test_unread_bytes_that_end_the_request",
    ),
    Limit(
        _TURNS + "output_timeout_s",
        "s of silence",
        "the request ends with an error",
        "duologue_http_requests_total",
        _IN_TURNS + "test_silence_of_the_engine",
    ),
    _refused(_TURN_CODE + "conversation:MAX_MESSAGES", "messages", _IN_TURNS + "test_messages_and_stops"),
    _refused(_TURN_CODE + "chat:MAX_STOPS", "texts in `stop`", _IN_TURNS + "test_messages_and_stops"),
    _refused(_TURN_CODE + "form:MAX_PARTS", "parts of a form", _IN_TURNS + "test_forms"),
    _refused(_TURN_CODE + "form:MAX_FIELD_BYTES", "bytes of a field", _IN_TURNS + "test_forms"),
    Limit(
        _TURN_CODE + "spoken:MAX_ANSWERS",
        "spoken answers",
        "the oldest is forgotten: a request that names its id is refused",
        "duologue_http_requests_total",
        _IN_TURNS + "test_spoken_answers",
    ),
)

EXEMPT: Final = {
    "audio_delta_ms": "a size, not a bound",
    "max_sessions_per_replica": "placement: see `max_sessions`",
    "max_audio_s": "refused like a body that is too large",
    "request_timeout_s": "like `output_timeout_s`",
    "body_timeout_s": "like `output_timeout_s`",
    "write_timeout_s": "like `output_timeout_s`",
    "keep_alive_s": "a rhythm, not a bound",
    "reaper_interval_s": "a rhythm, not a bound",
    "close_timeout_s": "how long an end may take",
    "control_timeout_s": "how long an operation may take",
    "submit_timeout_s": "how long a stage may take to accept",
    "drain_timeout_s": "how long an end may take",
    "ping_interval_s": "a rhythm, not a bound",
    "ping_timeout_s": "when a dead network is noticed",
    "journal_bytes": "`resume_replay_max_bytes_per_session`",
    "journal_ttl_s": "`resume_replay_ttl_s`",
}
"""Numbers of the configuration that bound nothing that is kept, and why."""
