"""The limits between the engine and its stages, and what bounds each queue of the product.

A file of its own beside ``limits.py``, which it extends: the same rules hold.
"""

from __future__ import annotations

from typing import Final

from limits import Limit

STAGES: Final = (
    Limit(
        "duologue.engine.stages.frames:MAX_FRAME_BYTES",
        "bytes",
        "a message to or from a worker that is longer fails its request (`payload_unencodable`)",
        'duologue_errors_total{code="payload_unencodable"}',
        "unit/engine/test_frames.py::test_a_message_has_a_limit",
    ),
    Limit(
        "duologue.engine.stages.ray_actor:OUTBOX_BYTES",
        "bytes",
        "a stage behind Ray waits until its outputs are fetched; one more always fits",
        'duologue_held{what="outbox_bytes"}',
        "unit/engine/test_ray_actor.py::test_more_waits_from_the_limit_on",
    ),
    Limit(
        "duologue.engine.stages.ray_actor:WINDOW",
        "messages",
        "who submits to a stage behind Ray waits until it has taken more of what was sent before; aborts do not",
        'duologue_held{what="sent_ahead"}',
        "unit/engine/test_ray_actor.py::test_a_client_sends_a_window_ahead_of_what_was_taken_and_then_waits",
    ),
    Limit(
        "duologue.engine.companions:MAX_COMPANIONS",
        "companions",
        "one more is refused (`request_invalid`)",
        'duologue_held{what="companions"}',
        "unit/engine/test_companions.py::test_a_parent_has_a_bounded_number_of_companions",
    ),
    Limit(
        "duologue.engine.replicas:MAX_REPLICAS",
        "replicas of a stage",
        "one more is refused (`request_invalid`)",
        'duologue_replicas{state="all"}',
        "unit/engine/test_placement.py::test_a_stage_has_a_bounded_number_of_replicas",
    ),
    Limit(
        "duologue.engine.placement:MAX_SESSION_KEYS",
        "sessions of a stage",
        "of the session that was longest without a request it is forgotten which replica holds its context; its next "
        "request goes to any and begins without",
        'duologue_held{what="session_keys"}',
        "unit/engine/test_pool.py::test_so_many_keys_are_remembered",
    ),
    Limit(
        "duologue.engine.duplex.core.submission:TELL_S",
        "s",
        "input that waits for room in a resident model's context waits for what the model tells of it no longer: the "
        "context is rolled over, or the session of a model that does not compact ends (`context_full`)",
        'duologue_limit_acted{limit="context"}',
        "unit/core/test_compaction.py::"
        "test_what_a_stage_took_and_the_model_never_heard_is_not_waited_for_longer_than_it_may_take",
    ),
    Limit(
        "duologue.engine.duplex.core.rebuild:MOST_ATTEMPTS",
        "times in a row",
        "an answer whose worker dies each time is not made again (`replica_unavailable`)",
        'duologue_errors_total{code="replica_unavailable"}',
        "unit/core/test_rebuild.py::test_an_answer_that_each_worker_dies_of_is_not_made_for_ever",
    ),
)

QUEUES: Final = {
    "cli/sound.py:_chunks": "the sound of one answer, which the server paces",
    "client/buffer.py:_entries": "its own limit, in bytes or pieces, given by the caller",
    "client/link.py:_kept_audio": "the caller's own limit on audio kept while the connection is away",
    "engine/duplex/core/audio.py:chunks": "`max_pending_input_bytes_per_session`",
    "engine/duplex/core/barrier.py:behind": "`MAX_WAITING_COMMANDS`",
    "engine/duplex/core/cancel.py:behind": "`MAX_WAITING_COMMANDS`",
    "engine/duplex/core/conversation.py:wanted": "`max_pending_turns_per_session`",
    "engine/duplex/core/gauge.py:waiting": "what the model's context holds (`context_units`)",
    "engine/duplex/core/outbox.py:queue": "`max_backlog_ms`",
    "engine/duplex/core/outbox.py:released": "`max_pending_output_events_per_session`",
    "engine/duplex/core/sequel.py:results": "`max_backlog_ms`",
    "engine/duplex/core/state.py:behind": "`MAX_WAITING_COMMANDS`",
    "engine/duplex/core/state.py:claims": "input that is not consumed: `max_pending_input_bytes_per_session`",
    "engine/duplex/core/state.py:scores": "input that is not consumed: `max_pending_input_bytes_per_session`",
    "engine/duplex/core/state.py:waiting": "`max_pending_input_bytes_per_session`",
    "engine/duplex/core/state.py:wanted": "`max_pending_turns_per_session`",
    "engine/duplex/core/tail.py:kept": "`max_pending_input_bytes_per_session`",
    "engine/duplex/core/tail.py:queue": "`max_pending_input_bytes_per_session`",
    "engine/duplex/session/control.py:_waiting": "`max_pending_input_bytes_per_session`",
    "engine/duplex/session/detection.py:_turns": "one question of each session",
    "engine/duplex/session/detection.py:_waiting": "one request of each session",
    "engine/duplex/session/detection.py:later": "one request of each session",
    "engine/duplex/session/manager.py:waiting": "operations, which wait for their answer",
    "engine/duplex/session/registry.py:waiting": "operations, which wait for their answer",
    "engine/duplex/session/runner.py:_queue": "drained within the loop turn",
    "engine/duplex/session/waiting.py:_guests": "`max_waiting_sessions`",
    "engine/life.py:_inbox": "drained by the loop; what sessions and requests may have under way bounds what comes",
    "engine/requests.py:held": "`MAX_HELD_PIECES`",
    "engine/requests.py:lane": "the outputs of one request, which are worked off as they come",
    "engine/stages/ray_actor.py:_items": "`OUTBOX_BYTES`",
    "engine/stages/vllm_engine.py:_work": "what requests have under way",
    "engine/stages/vllm_engine.py:answer": "one answer",
    "engine/stages/vllm_engine.py:started": "one answer",
    "engine/stages/works.py:_ready": "what requests have under way",
    "engine/stages/works.py:_waiting": "what requests have under way",
    "engine/stages/works.py:pieces": "input that a worker has taken and not worked on; one that hangs is killed",
    "models/cascade/stages.py:_queue": "the sentences of one answer",
    "models/native/plugin.py:unanswered": "input that a worker has taken and not answered; one that hangs is killed",
    "server/attachment.py:_frames": "`max_pending_output_events_per_session`",
    "server/attachment.py:_queue": "`max_pending_output_events_per_session`",
    "server/connection.py:_early": "`max_early_events`",
    "server/connection.py:_out": "`max_local_frames`",
    "server/connection.py:_place": "the newest word only",
    "server/journal.py:_entries": "`resume_replay_max_bytes_per_session`",
    "server/turns/desk.py:_messages": "`max_unread_bytes`",
    "server/turns/desk.py:_pieces": "the pieces of one request, which `max_body_bytes` bounds",
    "server/turns/gate.py:_queue": "`max_waiting`",
}
"""Each queue that has no length of its own (``file:name``), and what bounds it."""
