"""What must have a test, and which: rules of the reference that stay, cases from the field, invariants, documented names.

`test_kept.py` fails when a test that is named here is missing, or named otherwise than its rule demands.
"""

from __future__ import annotations

from typing import Final

RULES: Final[dict[str, tuple[str, ...]]] = {
    # section and rule -> beginnings of test names
    "04 open: existing id, limit, order of events, rollback on every failure": (
        "test_behaviour_04_open_a_second_session_of_the_same_id",
        "test_behaviour_04_open_beyond_the_limit",
        "test_behaviour_04_open_says_created_then_updated",
        "test_behaviour_04_open_that_fails_is_rolled_back",
        "test_behaviour_04_open_no_session_is_admitted_without_a_replica",
    ),
    "04 slot: held while open and closing, free when the stages are clean": (
        "test_behaviour_04_slot_is_held_until",
        "test_behaviour_04_slot_of_stages_that_are_not_clean",
    ),
    "04 close: irreversible, answers and stages first, terminal last, repeatable": (
        "test_behaviour_04_close_is_irreversible",
        "test_behaviour_04_close_in_mid_answer",
        "test_behaviour_04_close_a_replacement_that_follows",
        "test_behaviour_04_close_of_an_unknown_session",
    ),
    "05 resume: compare-and-swap, replay of a control id": (
        "test_behaviour_05_resume_of_two_that_race",
        "test_behaviour_05_resume_that_is_repeated",
    ),
    "08 append tail: wire order, failure, cancel, close, clear, commit": (
        "test_behaviour_08_tail_submission_order",
        "test_behaviour_08_tail_a_failure_takes_along",
        "test_behaviour_08_tail_a_failure_fails_the_response",
        "test_behaviour_08_tail_what_a_cancel_withdraws",
        "test_behaviour_08_tail_a_closing_session",
        "test_behaviour_08_tail_cleared_input",
        "test_behaviour_08_tail_cleared_units",
        "test_behaviour_08_tail_a_commit_",
        "test_behaviour_08_tail_settings_behind_a_failed_tail",
        "test_behaviour_08_tail_a_functions_result_waits",
        "test_behaviour_08_tail_a_second_turn_waits",
        "test_behaviour_08_tail_what_no_stage_has_taken",
        "test_behaviour_08_tail_a_turn_whose_answer_was_cancelled",
        "test_behaviour_08_tail_a_cancel_waits_for_nothing",
        "test_behaviour_08_tail_an_answer_",
        "test_behaviour_08_tail_settings_are_changed_one",
        "test_behaviour_08_tail_new_settings_reach_nothing",
        "test_behaviour_08_tail_what_follows_a_change",
        "test_behaviour_08_tail_what_a_failed_tail_takes_along",
    ),
    "11 unacknowledged playback holds up nothing (the rule is struck by decision 10)": ("test_decision_10",),
    "14 a failing stage: error, failed response, and the end of a resident session": (
        "test_behaviour_14_a_failure_in_mid_answer",
        "test_behaviour_14_a_resident_stage_that_fails",
        "test_behaviour_14_a_stage_that_fails_costs_one_answer",
    ),
    "15 a cancel at any await point leaves nothing": ("test_behaviour_15_a_cancel_at_any_await_point",),
    "16 the first acknowledgement finds its place in history reserved": ("test_behaviour_16_the_place_in_history",),
    "20 resume: tokens, replay before live events, takeover, abandoned resumes": (
        "test_behaviour_20_resume_tokens_rotate",
        "test_behaviour_20_resume_the_old_token",
        "test_behaviour_20_resume_continues_where",
        "test_behaviour_20_resume_what_happened_meanwhile",
        "test_behaviour_20_resume_tells_the_old_socket_once",
        "test_behaviour_20_resume_that_is_abandoned",
        "test_behaviour_20_resume_keeps_the_negotiated_format",
    ),
}

FIELD_CASES: Final = range(1, 61)
DECISIONS: Final = range(1, 30)

DOCUMENTED: Final[dict[str, tuple[str, ...]]] = {
    # a name that the user's documents fix -> tests of what it does (its signature has its own, by introspection)
    "DuplexOrchestrator._dispatch_message": ("test_who_handles_a_message",),
    "DuplexOrchestrator._background_tasks": ("test_background_tasks_and_extensions_end_in_order_on_a_shutdown",),
    "DuplexOrchestrator._shutdown_extensions": ("test_background_tasks_and_extensions_end_in_order_on_a_shutdown",),
    "DuplexOrchestrator._on_stage_submitted": ("test_a_submission_that_a_cancel_overtook_is_bound_to_nobody",),
    "DuplexOrchestrator._intercept_stage_output": ("test_what_the_interceptor_lets_pass",),
    "DuplexOrchestrator._handle_forward_failure": (
        "test_a_failure_to_forward_is_told_before_the_request_is_cleaned",
        "test_a_failed_request_that_its_ephemeral_session_does_not_know_ends_nobody",
    ),
    "DuplexOrchestrator._cleanup_request_ids": (
        "test_a_cleanup_with_owners_ends_their_sessions_once_it_is_done",
        "test_a_cleanup_that_raises_leaves_the_end_to_the_reaper",
    ),
    "DuplexStagePort.sampling_defaults": ("test_sampling_defaults_need_every_stage",),
    "DuplexStagePort.stage_count": ("test_sampling_defaults_need_every_stage",),
    "DuplexStagePort.ensure_request": (
        "test_a_new_request_is_registered_before_anything_is_submitted",
        "test_sampling_is_replaced_only_with_the_configuration",
        "test_an_id_of_a_turn_request_is_refused",
        "test_the_bridge_record_follows_the_fence",
    ),
    "DuplexStagePort.submit": (
        "test_a_submission_needs_a_registered_request",
        "test_a_submission_says_where_it_went_and_under_which_fence",
    ),
    "DuplexStagePort.cleanup": ("test_aborting_nothing_is_nothing_and_duplicates_are_one",),
    "DuplexStagePort.abort_requests": ("test_aborting_nothing_is_nothing_and_duplicates_are_one",),
    "DuplexSessionRunner.start": ("test_behaviour_04_open_says_created_then_updated_and_answers_after_them",),
    "DuplexSessionRunner.submit": ("test_pieces_wait_for_each_other_and_keep_their_order",),
    "DuplexSessionRunner.emit": ("test_an_internal_event_is_judged_once_at_entry",),
    "DuplexSessionRunner.close": (
        "test_a_bare_close_ends_after_its_own_cleaning",
        "test_a_bare_close_whose_stages_stay_unclean_says_so",
    ),
    "DuplexSessionRunner.expire": ("test_a_silent_session_expires_after_its_idle_time",),
    "DuplexSessionRunner.shutdown": ("test_a_shutdown_ends_every_task_whatever_it_does",),
    "DuplexSessionRunner.offload": ("test_work_can_be_done_away_from_the_loop",),
    "DuplexSessionRunner.spawn": ("test_a_shutdown_ends_every_task_whatever_it_does",),
    "DuplexSessionRunner.on_stage_output": (
        "test_the_plugin_decides_what_is_forwarded",
        "test_an_output_with_an_error_is_a_failure",
    ),
    "DuplexSessionRunner.on_stage_failure": ("test_a_failure_is_told_at_once_and_never_overtakes_an_output",),
    "DuplexSessionRunner.mark_closed_emitted": ("test_whoever_claims_the_terminal_is_the_only_one_to_send_it",),
    "DuplexEngineSession.bind_stage_request": (
        "test_a_stage_binds_only_what_the_session_still_wants",
        "test_binding_a_request_of_an_ended_epoch_is_refused",
    ),
    "DuplexSessionRunner.closing": ("test_a_bare_close_ends_after_its_own_cleaning",),
    "DuplexSessionRunner.closed_emitted": ("test_whoever_claims_the_terminal_is_the_only_one_to_send_it",),
    "DuplexSessionManager.accepts": ("test_who_handles_a_message",),
    "DuplexSessionManager.dispatch": ("test_behaviour_04_open_says_created_then_updated_and_answers_after_them",),
    "DuplexSessionManager.emit": ("test_an_internal_event_is_judged_once_at_entry",),
    "DuplexSessionManager.register_request": ("test_a_request_belongs_to_the_session_that_registered_it",),
    "DuplexSessionManager.unregister_request": ("test_a_request_belongs_to_the_session_that_registered_it",),
    "DuplexSessionManager.runner_for_request_id": ("test_a_request_belongs_to_the_session_that_registered_it",),
    "DuplexSessionManager.close_sessions_for_request_ids": (
        "test_sessions_whose_requests_go_are_closed_and_say_what_else_has_to_go",
        "test_a_cleanup_with_owners_ends_their_sessions_once_it_is_done",
    ),
    "DuplexSessionManager.finalize_closed_sessions": (
        "test_sessions_whose_requests_go_are_closed_and_say_what_else_has_to_go",
    ),
    "DuplexSessionManager.defer_request_cleanups": (
        "test_a_cleanup_that_is_deferred_is_the_sessions_own_again",
        "test_a_cleanup_that_raises_leaves_the_end_to_the_reaper",
    ),
    "DuplexSessionManager.reaper_loop": ("test_a_silent_session_expires_after_its_idle_time",),
    "DuplexSessionManager.shutdown": ("test_background_tasks_and_extensions_end_in_order_on_a_shutdown",),
    "SessionEmitter": ("test_content_of_an_ended_epoch_or_answer_never_leaves", "test_nothing_follows_the_terminal"),
    "SessionControl": ("test_a_commit_takes_what_the_filters_hold_and_a_clear_forgets_it",),
    "ModelChannel": ("test_a_submission_that_takes_too_long_is_given_up",),
    "compute_silence_continuation_deadline": ("test_the_formula", "test_the_documented_cases"),
    "StageRequestStats": ("test_every_request_is_observed_once_at_each_stage_that_it_reached",),
}
