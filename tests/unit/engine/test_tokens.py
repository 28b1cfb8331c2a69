"""Text out of tokens: stop strings are found across tokens and never given out, nothing else is held for long."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.engine.stages.tokens import TextStream, Vocabulary, _stop_tokens
from duologue.errors import StageFault


class Letters:
    """A decoder whose tokens are characters."""

    def step(self, tokenizer: object, token_id: int) -> str | None:
        return chr(token_id)


def stream(*stop: str) -> TextStream:
    return TextStream(None, Letters(), stop)


def feed(text: TextStream, said: str) -> list[str]:
    return [text.push([ord(char)]) for char in said]


def test_without_stop_strings_everything_is_given_out_at_once() -> None:
    assert feed(stream(), "abc") == ["a", "b", "c"]


def test_a_stop_string_ends_the_text_before_it() -> None:
    text = stream("END")
    assert "".join(feed(text, "so be it. ENDless")) == "so be it. "
    assert text.hit
    assert text.finish() == ""


def test_what_might_become_a_stop_string_is_held_until_it_does_not() -> None:
    text = stream("END")
    assert feed(text, "xENx") == ["x", "", "", "ENx"]
    assert feed(text, "E") == [""]
    assert text.finish() == "E"
    assert not text.hit


@given(st.text("abc", max_size=30), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_the_text_ends_where_the_first_stop_string_begins(said: str, stops: list[str]) -> None:
    text = stream(*stops)
    given_out = "".join(feed(text, said)) + text.finish()
    # Token by token, the stop string that is complete first counts, not the one that begins first.
    ends = [(said.index(stop) + len(stop), said.index(stop)) for stop in stops if stop in said]
    first = min((end for end, _ in ends), default=None)
    expected = said if first is None else said[: min(begin for end, begin in ends if end == first)]
    assert given_out == expected


def test_the_models_own_end_tokens_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 2}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 2]}))
    assert _stop_tokens(tmp_path) == (5, 2)


def test_a_tokenizer_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(StageFault, match=r"tokenizer\.json can't be used"):
        Vocabulary(tmp_path)


class Bytes:
    """A decoder as the tokenizers package has it: tokens are bytes, text comes when they make whole characters."""

    def __init__(self) -> None:
        self.held = b""

    def step(self, _: object, token_id: int) -> str | None:
        self.held += bytes([token_id])
        try:
            text = self.held.decode()
        except UnicodeDecodeError:
            return None
        self.held = b""
        return text


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("text", ["a \U0001f600 b", "日本語", "\U0001f468\u200d\U0001f469\u200d\U0001f467 family", "é"])
def test_field_F57_characters_that_are_split_between_tokens_come_whole(text: str, size: int) -> None:
    stream = TextStream(None, Bytes(), ["family!"])
    tokens = list(text.encode())
    pieces = [stream.push(tokens[start : start + size]) for start in range(0, len(tokens), size)]
    assert "".join([*pieces, stream.finish()]) == text
    cut = TextStream(None, Bytes(), [])
    assert "\ufffd" not in cut.push(tokens[:-1]) + cut.finish()
    assert text.startswith(cut.push([]))
