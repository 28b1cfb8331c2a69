"""Fitting a conversation into a budget: order, steps, and no memory between calls."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.models.cascade.chat import ChatMessage, Role
from duologue.models.cascade.context import estimated_tokens, fit_history


def _size(messages: list[ChatMessage]) -> int:
    return sum(estimated_tokens(message.content) for message in messages)


def _talk(turns: int, words: int = 10) -> list[ChatMessage]:
    messages = []
    for turn in range(turns):
        messages.append(ChatMessage(Role.USER, f"question {turn} " + "word " * words))
        messages.append(ChatMessage(Role.ASSISTANT, f"answer {turn} " + "word " * words))
    return messages


_HISTORY = st.lists(
    st.builds(ChatMessage, st.sampled_from([Role.USER, Role.ASSISTANT]), st.text(max_size=90)), max_size=14
)


@given(_HISTORY, st.integers(16, 300))
def test_what_is_kept_is_the_end_and_fits(history: list[ChatMessage], budget: int) -> None:
    kept = fit_history(history, budget)
    assert _size(kept) <= budget
    if _size(history) <= budget:
        assert kept == history
        return
    assert len(kept) >= 1
    if len(kept) > 1:
        assert kept == history[-len(kept) :]
        assert kept[0].role is Role.USER
    else:
        assert history[-1].content.endswith(kept[0].content)


def test_the_first_kept_turn_moves_in_steps() -> None:
    talk = _talk(60)
    firsts = [fit_history(talk[: 2 * turn + 1], 600)[0].content for turn in range(60)]
    changes = sum(before != after for before, after in itertools.pairwise(firsts))
    assert 3 <= changes <= 10
    assert firsts == sorted(firsts, key=lambda content: int(content.split()[1]))


def test_a_message_that_is_too_long_alone_keeps_its_end() -> None:
    (kept,) = fit_history([ChatMessage(Role.USER, "old " * 500 + "and the end")], 40)
    assert kept.content.endswith("and the end")
    assert kept.content.startswith("old")
    (wide,) = fit_history([ChatMessage(Role.USER, "語" * 500)], 40)
    assert 0 < len(wide.content) <= 17


def test_estimates_are_on_the_high_side() -> None:
    assert estimated_tokens("The capital of France is Paris.") >= 7 + 5
    assert estimated_tokens("日本語") >= 3


def test_a_budget_that_holds_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="16"):
        fit_history([], 15)


@given(_HISTORY, st.text(max_size=60), st.text(max_size=60), st.integers(40, 400))
def test_what_is_left_out_is_known_before_the_question_is(
    history: list[ChatMessage], one: str, other: str, budget: int
) -> None:
    """Any two questions within the reserve follow the same turns, so those can be read before either is asked."""
    reserve = max(estimated_tokens(one), estimated_tokens(other))
    before = [
        fit_history([*history, ChatMessage(Role.USER, text)], budget, reserve_tokens=reserve)[:-1]
        for text in (one, other, "")
        if reserve <= budget
    ]
    assert all(kept == before[0] for kept in before)
