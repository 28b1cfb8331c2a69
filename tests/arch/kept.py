"""What must have a test, and which: the rules of the reference that stay, the cases from the field, the invariants.

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
        "test_behaviour_08_tail_an_answer_waits",
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
    ),
}

FIELD_CASES: Final = range(1, 61)
DECISIONS: Final = range(1, 23)

INVARIANTS: Final[dict[str, tuple[str, ...]]] = {
    # number of list B -> where a checker asserts it: module and a text that it says or checks
    "B1": ("duologue.sim.checkers.order", '"B1"'),
    "B2": ("duologue.sim.checkers.order", '"B2"'),
    "B3": ("duologue.sim.checkers.order", '"B3"'),
    "B4": ("duologue.sim.checkers.order", '"B4"'),
    "B5": ("duologue.sim.site", '"B5:'),
    "B6": ("duologue.sim.site", '"B6:'),
    "B7": ("duologue.sim.world", '"B7:'),
    "B8": ("duologue.sim.checkers.pace", '"B8"'),
    "B9": ("duologue.sim.checkers.feed", '"B9"'),
    "B10": ("duologue.sim.checkers.feed", '"B10"'),
    "B11": ("duologue.sim.world", '"B11:'),
    "B12": ("duologue.sim.checkers.journal", '"B12"'),
    "B13": ("duologue.sim.checkers.journal", '"B13"'),
    "B14": ("duologue.sim.checkers.journal", '"B14"'),
    "B15": ("duologue.sim.checkers.journal", '"B15"'),
    "B16": ("duologue.sim.checkers.bounds", '"B16"'),
    "B17": ("duologue.sim.checkers.pace", '"B17"'),
    "B18": ("duologue.sim.checkers.history", '"B18"'),
    "B19": ("duologue.sim.checkers.bounds", '"B19"'),
    "B20": ("duologue.sim.world", '"B20:'),
    "B21": ("duologue.sim.checkers.bounds", '"B21"'),
    "B22": ("duologue.sim.checkers.answer", '"B22"'),
    "B23": ("duologue.sim.twin", '"B23"'),
    "B24": ("duologue.sim.twin", '"B24"'),
    "B25": ("duologue.sim.strike", '"B25"'),
}
