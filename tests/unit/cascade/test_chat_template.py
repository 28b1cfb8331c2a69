"""Prompts: append-only, free of smuggled control tokens, right for each family; and the head of a GGUF file."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.detect.weights import ModelUnavailableError
from duologue.models.cascade import persona
from duologue.models.cascade.chat import ChatMessage, Role
from duologue.models.cascade.chat_template import (
    CHATML,
    GEMMA,
    LLAMA3,
    PHI3,
    TEMPLATES,
    ChatTemplate,
    clean,
    detect_template,
    render,
    render_for_answer,
)
from duologue.models.cascade.gguf import read_description

_MESSAGES = st.lists(
    st.builds(ChatMessage, st.sampled_from([Role.USER, Role.ASSISTANT]), st.text(max_size=30)), max_size=6
)


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.name)
@given(history=_MESSAGES, answer=st.text(max_size=20))
def test_a_longer_conversation_only_adds_to_the_prompt(
    template: ChatTemplate, history: list[ChatMessage], answer: str
) -> None:
    before = render(template, history)
    asked = render_for_answer(template, history)
    assert asked.startswith(before)
    after = render_for_answer(template, [*history, ChatMessage(Role.ASSISTANT, answer), ChatMessage(Role.USER, "a")])
    assert after.startswith(asked + clean(answer) + template.closing)


def test_chatml_is_written_out_in_full() -> None:
    prompt = render_for_answer(CHATML, [ChatMessage(Role.SYSTEM, "Be kind."), ChatMessage(Role.USER, " Hi ")])
    assert prompt == ("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_a_family_without_system_role_hears_it_from_the_user() -> None:
    prompt = render(GEMMA, [ChatMessage(Role.SYSTEM, "Be kind."), ChatMessage(Role.USER, "Hi")])
    assert prompt == "<bos><start_of_turn>user\nBe kind.\n\nHi<end_of_turn>\n"


@given(st.text(alphabet="<|im_start>end/sbo \nab"))
def test_nobody_can_speak_a_control_token(content: str) -> None:
    cleaned = clean(content)
    assert "<|im_start|>" not in cleaned
    assert "<|im_end|>" not in cleaned
    assert "</s>" not in cleaned
    assert clean(cleaned) == cleaned


def test_a_token_inside_a_token_does_not_survive() -> None:
    assert clean("<|im_<|im_end|>start|>x") == "x"
    assert clean("a < b | c > d") == "a < b | c > d"


@pytest.mark.parametrize(
    ("own", "family"),
    [
        ("{{'<|im_start|>' + role}}", CHATML),
        ("<|start_header_id|>{{role}}", LLAMA3),
        ("<start_of_turn>", GEMMA),
        ("<|user|>x<|end|>", PHI3),
    ],
)
def test_the_family_is_read_from_the_models_template(own: str, family: ChatTemplate) -> None:
    assert detect_template(own) is family


def test_an_unknown_family_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="template="):
        detect_template("[INST] {{ content }} [/INST]")


def test_instructions_follow_the_fixed_part() -> None:
    plain = persona.prefix()
    assert persona.prefix("Speak like a pirate.")[: len(plain)] == plain
    assert persona.prefix(" Be brief. ")[-1] == ChatMessage(Role.SYSTEM, "Be brief.")
    assert persona.prefix("  ") == plain
    history = [ChatMessage(Role.USER, "Hi")]
    assert persona.compose("", history) == [*plain, *history]
    assert len(persona.EXAMPLES) == 4


def _gguf(entries: list[bytes], *, claimed: int | None = None, version: int = 3) -> bytes:
    count = len(entries) if claimed is None else claimed
    return b"GGUF" + struct.pack("<IQQ", version, 0, count) + b"".join(entries)


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def test_strings_and_numbers_are_read_past_lists(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    entries = [
        _string("tokens") + struct.pack("<IIQ", 9, 8, 2) + _string("a") + _string("bc"),
        _string("scores") + struct.pack("<IIQ2f", 9, 6, 2, 1.0, 2.0),
        _string("name") + struct.pack("<I", 8) + _string("Tiny"),
        _string("layers") + struct.pack("<II", 4, 30),
    ]
    path.write_bytes(_gguf(entries))
    assert read_description(path) == {"name": "Tiny", "layers": 30}


@pytest.mark.parametrize(
    "data",
    [
        b"nope",
        b"GGUF",
        _gguf([], version=9),
        _gguf([], claimed=1 << 40),
        _gguf([], claimed=3),
        _gguf([struct.pack("<Q", 1 << 60)]),
        _gguf([_string("k") + struct.pack("<I", 77)]),
        _gguf([_string("k") + struct.pack("<IIQ", 9, 9, 1)]),
        _gguf([_string("k") + struct.pack("<IIQ", 9, 4, 1 << 50)]),
    ],
)
def test_a_file_that_is_no_gguf_is_refused_without_reading_far(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelUnavailableError, match="GGUF"):
        read_description(path)
