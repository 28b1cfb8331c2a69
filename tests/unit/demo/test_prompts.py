"""Whether the model was asked what it should have been asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from duologue.demo.prompts import Message, Prompt, check_prompt, read_prompts


def prompt(*messages: tuple[str, str], session_id: str = "s") -> Prompt:
    return Prompt(session_id=session_id, request_id="r", messages=tuple(Message(*each) for each in messages))


GOOD = prompt(
    ("system", "Be brief."),
    ("user", "Tell me a story."),
    ("assistant", "Once upon a"),
    ("user", "Who is it about?"),
)


def check(*prompts: Prompt, heard: str = "Once upon a") -> str | None:
    return check_prompt(
        prompts, user_text="Who is it about?", earlier_user_text="Tell me a story.", earlier_assistant_text=heard
    )


def test_the_prompt_that_holds_exactly_what_was_heard_is_right() -> None:
    assert check(GOOD) is None


def test_spaces_do_not_count() -> None:
    assert check(GOOD, heard=" Once  upon a\n") is None


@pytest.mark.parametrize(
    ("prompts", "heard", "message"),
    [
        ((GOOD,), "Once upon", "holds the answer 'Once upon a', but heard was 'Once upon'"),
        ((GOOD,), "Once upon a time", "holds the answer 'Once upon a', but heard"),
        ((prompt(("user", "Who is it about?")),), "Once upon a", "does not hold what the user said before"),
        ((prompt(("user", "Something else")),), "Once upon a", "no prompt asks 'Who is it about?'"),
        ((), "Once upon a", "no prompt asks"),
        (
            (prompt(("user", "Tell me a story."), ("user", "Who is it about?")),),
            "Once upon a",
            "no prompt asks",
        ),
    ],
)
def test_anything_else_is_wrong(prompts: tuple[Prompt, ...], heard: str, message: str) -> None:
    fault = check(*prompts, heard=heard)
    assert fault is not None and message in fault


def test_nothing_was_heard_so_nothing_may_be_there() -> None:
    side_by_side = prompt(("user", "Tell me a story."), ("user", "Who is it about?"))
    assert check(side_by_side, heard="") is None
    assert check(GOOD, heard="") is not None


def test_a_turn_may_have_been_committed_in_pieces() -> None:
    pieces = prompt(
        ("user", "Tell me"), ("user", "a story."), ("assistant", "Once upon a"), ("user", "Who is it about?")
    )
    assert check(pieces) is None


def test_the_last_prompt_counts() -> None:
    stale = prompt(("user", "Who is it about?"))
    assert check(stale, GOOD) is None
    assert check(GOOD, stale) is not None


def test_without_a_log_nothing_is_known() -> None:
    fault = check_prompt(None, user_text="a", earlier_user_text="b", earlier_assistant_text="c")
    assert fault is not None and "no prompt log" in fault


def test_the_log_is_read_for_one_session(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    assert read_prompts(path, "s") is None
    line = '{"session_id": "%s", "request_id": "r1", "messages": [{"role": "user", "text": "hi"}], "more": 1}\n'
    path.write_text(line % "other" + line % "s")
    found = read_prompts(path, "s")
    assert found is not None
    assert [(each.session_id, each.messages) for each in found] == [("s", (Message("user", "hi"),))]


def test_a_broken_log_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"session_id": "s", "request_id": "r", "messages": []}\n{"session_id": 3}\n')
    with pytest.raises(ValueError, match="line 2"):
        read_prompts(path, "s")
