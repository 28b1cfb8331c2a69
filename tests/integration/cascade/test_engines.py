"""The engines of the cascade with their real weights."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from duologue.models.cascade import language_model, persona
from duologue.models.cascade.chat import ChatMessage, FinishReason, Role
from duologue.models.cascade.language_model import ContextOverflowError, LanguageModel
from duologue.models.cascade.recogniser import Memory, Recogniser
from duologue.models.cascade.synthesiser import RATE_HZ, Speech, Synthesiser
from duologue.models.cascade.voice import ASSISTANT, USER, Voice, speak
from tests.integration.cascade.recording import read_pcm16, word_error_rate

pytestmark = pytest.mark.weights

_HEARD_HZ = 16_000
_TWO_CITIES = (
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness, "
    "it was the epoch of belief, it was the epoch of incredulity, it was the season of Light, it was the season of "
    "Darkness, it was the spring of hope, it was the winter of despair, we had everything before us, we had nothing "
    "before us, we were all going direct to Heaven, we were all going direct the other way - in short, the period was "
    "so far like the present period, that some of its noisiest authorities insisted on its being received, for good "
    "or for evil, in the superlative degree of comparison only."
)
_QUESTIONS = (
    "What is the capital of France?",
    "How many legs does a spider have?",
    "Tell me a long story about a brave little dog.",
    "What did you just tell me?",
    "Why is the sky blue at noon?",
    "Could you recommend a good book for the weekend?",
)


@pytest.fixture(scope="module")
def recogniser(models_dir: Path) -> Recogniser:
    return Recogniser(models_dir)


@pytest.fixture(scope="module")
def synthesiser() -> Synthesiser:
    return Synthesiser()


@pytest.fixture(scope="module")
def model(models_dir: Path) -> Iterator[LanguageModel]:
    loaded = LanguageModel(models_dir / language_model.MODEL_FILE, slots=2, context_tokens=512)
    yield loaded
    loaded.close()


def _user(text: str) -> ChatMessage:
    return ChatMessage(Role.USER, text)


# --- recognition


def test_a_person_is_understood(recogniser: Recogniser, models_dir: Path) -> None:
    pcm = read_pcm16(models_dir / "beckett.wav", _HEARD_HZ)[: 2 * int(5.5 * _HEARD_HZ)]
    assert word_error_rate("Ever tried. Ever failed. No matter. Try again.", recogniser.transcribe(pcm)) == 0.0


def test_a_long_recording_is_understood_piece_by_piece(recogniser: Recogniser, models_dir: Path) -> None:
    pcm = read_pcm16(models_dir / "two_cities.wav", _HEARD_HZ)
    assert word_error_rate(_TWO_CITIES, recogniser.transcribe(pcm)) <= 0.1


def test_what_is_no_speech_gives_no_text_and_no_error(recogniser: Recogniser) -> None:
    rng = np.random.default_rng(0)
    noises = [(rng.standard_normal(2 * _HEARD_HZ) * level).astype("<i2").tobytes() for level in (8, 100, 3000)]
    for pcm in (b"", b"\x01", b"\x00\x01" * 10, b"\x00" * 64_000, *noises):
        assert recogniser.transcribe(pcm) == ""


def test_a_hostile_signal_is_bounded_work(recogniser: Recogniser) -> None:
    square = b"\xff\x7f\x00\x80" * (2 * _HEARD_HZ)
    assert len(recogniser.transcribe(square).split()) < 40


def test_a_cancelled_recognition_stops(recogniser: Recogniser, models_dir: Path) -> None:
    pcm = read_pcm16(models_dir / "clone-test.wav", _HEARD_HZ)
    asked: list[int] = []

    def cancelled() -> bool:
        asked.append(1)
        return len(asked) > 4

    assert 0 < len(recogniser.transcribe(pcm, cancelled=cancelled)) < len(recogniser.transcribe(pcm))


def test_what_was_understood_before_makes_it_quicker_and_not_worse(recogniser: Recogniser, models_dir: Path) -> None:
    pcm = read_pcm16(models_dir / "two_cities.wav", _HEARD_HZ)[: 2 * 9 * _HEARD_HZ]
    memory = Memory()
    for seconds in range(1, 9):
        recogniser.transcribe(pcm[: 2 * seconds * _HEARD_HZ], memory=memory)
    asked: list[int] = []

    def counted() -> bool:
        asked.append(1)
        return False

    plain = recogniser.transcribe(pcm, cancelled=counted)
    steps = len(asked)
    asked.clear()
    assert word_error_rate(plain, recogniser.transcribe(pcm, cancelled=counted, memory=memory)) <= 0.1
    assert len(asked) < steps / 2
    asked.clear()
    assert word_error_rate(plain, recogniser.transcribe(pcm, memory=Memory([7, 8, 9]))) <= 0.1, (
        "a wrong guess is found out"
    )


def test_more_audio_than_one_call_may_hold_is_refused(recogniser: Recogniser) -> None:
    with pytest.raises(ValueError, match="121 s"):
        recogniser.transcribe(bytes(2 * _HEARD_HZ * 121))


# --- synthesis


@pytest.mark.parametrize("voice", [ASSISTANT, USER], ids=["assistant", "user"])
def test_both_voices_are_understood(recogniser: Recogniser, synthesiser: Synthesiser, voice: Voice) -> None:
    heard = [recogniser.transcribe(speak(synthesiser, text, voice, rate_hz=_HEARD_HZ)) for text in _QUESTIONS]
    assert word_error_rate(" ".join(_QUESTIONS), " ".join(heard)) <= 0.05


def test_the_same_seed_gives_the_same_bytes(synthesiser: Synthesiser) -> None:
    first = synthesiser.synthesize("Hello there.", seed=3)
    assert synthesiser.synthesize("Hello there.", seed=3) == first
    assert synthesiser.synthesize("Hello there.", seed=4) != first


def test_marks_say_when_each_word_has_been_heard(recogniser: Recogniser, synthesiser: Synthesiser) -> None:
    text = "We met Dr. Brown on 10/12/2019 in London. The weather was lovely that day."
    speech = synthesiser.synthesize(text)
    assert speech.marks[-1].chars == len(text)
    assert speech.marks[-1].end_ms == speech.duration_ms
    assert [mark.end_ms for mark in speech.marks] == sorted(mark.end_ms for mark in speech.marks)
    cut = next(mark for mark in speech.marks if text[: mark.chars].endswith("London"))
    played = speech.pcm16[: 2 * RATE_HZ * cut.end_ms // 1000]
    heard = recogniser.transcribe(_at_recognition_rate(Speech(played, ())))
    assert heard.rstrip(".").endswith("London")
    assert "weather" not in heard


def _at_recognition_rate(speech: Speech) -> bytes:
    import soxr

    samples = np.frombuffer(speech.pcm16, "<i2").astype(np.float32)
    return np.rint(soxr.resample(samples, RATE_HZ, _HEARD_HZ)).astype("<i2").tobytes()


@pytest.mark.parametrize("text", ["", "...", "\x00", "日本語", "$", "😀"])
def test_nothing_to_say_is_no_error(synthesiser: Synthesiser, text: str) -> None:
    speech = synthesiser.synthesize(text)
    assert len(speech.pcm16) % 2 == 0
    assert speech.duration_ms < 500


@pytest.mark.parametrize("text", ["9" * 60, "x" * 90, "[a](http://b.c)", "1,2,3,,,4", "**so** 5% of £3.50?!"])
def test_odd_text_is_said_somehow(synthesiser: Synthesiser, text: str) -> None:
    speech = synthesiser.synthesize(text)
    assert speech.duration_ms > 300
    assert speech.marks[-1].chars == len(text)


def test_faster_is_shorter_and_nonsense_is_normal(synthesiser: Synthesiser) -> None:
    text = "The quick brown fox jumps over the lazy dog."
    normal = synthesiser.synthesize(text).duration_ms
    assert synthesiser.synthesize(text, speed=1.5).duration_ms < 0.8 * normal
    assert synthesiser.synthesize(text, speed=float("nan")).duration_ms == normal


def test_a_cancelled_synthesis_ends_after_the_sentence(synthesiser: Synthesiser) -> None:
    answers = iter([False, True, True, True])
    text = "First sentence. Second sentence."
    speech = synthesiser.synthesize(text, cancelled=lambda: next(answers))
    assert speech.marks[-1].chars == len("First sentence.")


# --- language model


def test_a_later_turn_computes_only_its_new_tokens(model: LanguageModel) -> None:
    prefilled = model.prefill(0, persona.prefix())
    history = [_user("What is the capital of France?")]
    first = model.generate(0, persona.compose("", history), on_text=lambda _: False, temperature=0.0)
    assert "Paris" in first.text
    assert first.finish_reason is FinishReason.STOP
    assert first.cached_tokens == prefilled
    history += [ChatMessage(Role.ASSISTANT, first.text), _user("And of Spain?")]
    second = model.generate(0, persona.compose("", history), on_text=lambda _: False, temperature=0.0)
    assert second.prompt_tokens is not None
    assert second.cached_tokens is not None
    assert second.prompt_tokens - second.cached_tokens < 25


def test_dropping_an_old_turn_keeps_what_follows_it(model: LanguageModel) -> None:
    turns = [
        [_user(f"Tell me fact number {n} about the animals of the sea."), ChatMessage(Role.ASSISTANT, "fish " * 20)]
        for n in range(6)
    ]
    question = [_user("Thank you.")]
    whole = [message for turn in turns for message in turn]
    model.generate(1, persona.compose("", whole + question), on_text=lambda _: True)
    done = model.generate(1, persona.compose("", whole[4:] + question), on_text=lambda _: True)
    assert done.prompt_tokens is not None
    assert done.cached_tokens is not None
    assert done.prompt_tokens - done.cached_tokens < 60


def test_two_slots_do_not_mix(model: LanguageModel) -> None:
    answers: dict[int, str] = {}

    def ask(slot: int, question: str) -> None:
        prompt = persona.compose("", [_user(question)])
        answers[slot] = model.generate(slot, prompt, on_text=lambda _: False, temperature=0.0).text

    questions = ("What is the capital of France?", "What is the capital of Italy?")
    threads = [threading.Thread(target=ask, args=item) for item in enumerate(questions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "Paris" in answers[0]
    assert "Rome" in answers[1]


def test_a_cancelled_answer_frees_its_slot(model: LanguageModel) -> None:
    pieces: list[str] = []
    prompt = persona.compose("", [_user("Tell me a long story about a dragon.")])
    done = model.generate(0, prompt, on_text=lambda text: pieces.append(text) or len(pieces) == 5, max_tokens=200)
    assert done.finish_reason is FinishReason.CANCELLED
    assert done.text == "".join(pieces)
    again = model.generate(0, prompt, on_text=lambda _: False, max_tokens=5)
    assert again.finish_reason is FinishReason.LENGTH
    assert again.generated_tokens == 5


def test_instructions_are_honoured(model: LanguageModel) -> None:
    prompt = persona.compose("Your name is Bob and you sell shoes.", [_user("What is your name?")])
    assert "Bob" in model.generate(0, prompt, on_text=lambda _: False, temperature=0.0).text


def test_characters_come_whole(model: LanguageModel) -> None:
    prompt = [_user("Repeat: 😀😀 日本"), ChatMessage(Role.ASSISTANT, "😀😀 日本"), _user("Again: 🌍🌍 日本")]
    for limit in range(1, 8):
        done = model.generate(1, prompt, on_text=lambda _: False, max_tokens=limit, temperature=0.0)
        assert "\ufffd" not in done.text
        assert all(char in "\U0001f600\U0001f30d日本 " or char.isascii() for char in done.text)


def test_a_prompt_that_does_not_fit_is_refused(model: LanguageModel) -> None:
    with pytest.raises(ContextOverflowError) as caught:
        model.generate(0, [_user("word " * 600)], on_text=lambda _: False)
    assert caught.value.context_tokens == 512
    assert caught.value.prompt_tokens > 600


def test_nothing_can_connect_to_the_engine(model: LanguageModel) -> None:
    own = Path("/proc/self/net/unix").read_text()
    names = [line.split()[-1] for line in own.splitlines() if line.endswith("llm.sock")]
    assert names
    assert not any(Path(name).exists() for name in names)
