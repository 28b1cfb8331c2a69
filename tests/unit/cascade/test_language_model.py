"""The embedded language model over a scripted engine: requests, cancel, errors. No weights, no llama.cpp."""

from __future__ import annotations

import struct
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from duologue.detect.weights import ModelUnavailableError
from duologue.models.cascade.chat import ChatMessage, FinishReason, GenerationError, Role
from duologue.models.cascade.language_model import ContextOverflowError, LanguageModel

_ASK = [ChatMessage(Role.USER, "Hi")]
Chunk = Mapping[str, Any]


def _chunk(text: str, finish: str | None = None, **timings: int) -> Chunk:
    counted = {"cache_n": 5, "prompt_n": 3, "predicted_n": 0, **timings}
    return {"choices": [{"text": text, "finish_reason": finish}], "timings": counted}


class _Engine:
    """Stands in for xllamacpp: plays `chunks` to every request and keeps what it was asked."""

    def __init__(self, chunks: list[Chunk]) -> None:
        self.chunks = chunks
        self.requests: list[dict[str, Any]] = []
        self.params: Any = None
        self.delivered = 0

    def handle_completions(self, request: dict[str, Any], take: Callable[[Chunk], bool]) -> None:
        self.requests.append(request)
        for chunk in self.chunks:
            self.delivered += 1
            if take(chunk):
                return


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    def string(text: str) -> bytes:
        return struct.pack("<Q", len(text)) + text.encode()

    path = tmp_path / "tiny.gguf"
    entry = string("tokenizer.chat_template") + struct.pack("<I", 8) + string("<|im_start|>")
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + entry)
    return path


def _open(monkeypatch: pytest.MonkeyPatch, gguf: Path, chunks: list[Chunk]) -> tuple[LanguageModel, _Engine]:
    engine = _Engine(chunks)
    module = ModuleType("xllamacpp")

    def params() -> SimpleNamespace:
        return SimpleNamespace(model=SimpleNamespace(), cpuparams=SimpleNamespace(), cpuparams_batch=SimpleNamespace())

    def server(given: Any) -> _Engine:
        engine.params = given
        assert Path(given.hostnames[0]).parent.is_dir()
        return engine

    module.CommonParams = params  # type: ignore[attr-defined]
    module.Server = server  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "xllamacpp", module)
    return LanguageModel(gguf, slots=2, context_tokens=100), engine


def test_an_answer_is_streamed_and_counted(monkeypatch: pytest.MonkeyPatch, gguf: Path) -> None:
    progress = {**_chunk(""), "prompt_progress": {"total": 8, "cache": 5, "processed": 8}}
    chunks = [progress, _chunk("Hel"), _chunk("lo\ufffd", predicted_n=2), _chunk("", "stop", predicted_n=3)]
    model, engine = _open(monkeypatch, gguf, chunks)
    pieces: list[str] = []
    done = model.generate(1, _ASK, on_text=lambda text: bool(pieces.append(text)), seed=-1, stop=["X"])
    assert pieces == ["Hel", "lo"]
    assert (done.text, done.finish_reason) == ("Hello", FinishReason.STOP)
    assert (done.prompt_tokens, done.cached_tokens, done.generated_tokens) == (8, 5, 3)
    (request,) = engine.requests
    assert request["prompt"] == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert request["id_slot"] == 1
    assert request["cache_prompt"] is True
    assert request["seed"] >= 0
    assert "X" in request["stop"]
    assert "<|im_end|>" in request["stop"]


def test_the_engine_gets_one_thread_its_slots_and_no_port(monkeypatch: pytest.MonkeyPatch, gguf: Path) -> None:
    model, engine = _open(monkeypatch, gguf, [])
    params = engine.params
    assert model.slots == params.n_parallel == 2
    assert params.n_ctx == 200
    assert params.cpuparams.n_threads == params.cpuparams_batch.n_threads == 1
    (socket,) = params.hostnames
    assert socket.endswith(".sock")
    assert not Path(socket).parent.exists()


def test_on_text_cancels(monkeypatch: pytest.MonkeyPatch, gguf: Path) -> None:
    model, engine = _open(monkeypatch, gguf, [_chunk("a"), _chunk("b"), _chunk("c", "stop")])
    done = model.generate(0, _ASK, on_text=lambda text: text == "b")
    assert (done.text, done.finish_reason) == ("ab", FinishReason.CANCELLED)
    assert engine.delivered == 2


def test_a_cancel_is_seen_while_the_prompt_is_worked_off(monkeypatch: pytest.MonkeyPatch, gguf: Path) -> None:
    model, engine = _open(monkeypatch, gguf, [_chunk(""), _chunk(""), _chunk("a", "stop")])
    asked: list[int] = []

    def cancelled() -> bool:
        asked.append(1)
        return len(asked) > 2

    done = model.generate(0, _ASK, on_text=lambda _: False, cancelled=cancelled)
    assert (done.text, done.finish_reason, done.first_token_s) == ("", FinishReason.CANCELLED, None)
    assert engine.delivered == 2


def test_a_cancel_before_the_start_asks_the_engine_nothing(monkeypatch: pytest.MonkeyPatch, gguf: Path) -> None:
    model, engine = _open(monkeypatch, gguf, [])
    cancelled = threading.Event()
    cancelled.set()
    done = model.generate(0, _ASK, on_text=lambda _: False, cancelled=cancelled.is_set)
    assert done.finish_reason is FinishReason.CANCELLED
    assert engine.requests == []


def test_prefill_says_what_it_computed(monkeypatch: pytest.MonkeyPatch, gguf: Path) -> None:
    model, engine = _open(monkeypatch, gguf, [_chunk("x", "length", cache_n=10, prompt_n=7)])
    assert model.prefill(0, _ASK) == 7
    assert engine.requests[0]["prompt"].endswith("<|im_end|>\n")
    assert engine.requests[0]["max_tokens"] == 0


def test_a_prompt_that_does_not_fit_says_by_how_much(monkeypatch: pytest.MonkeyPatch, gguf: Path) -> None:
    error = {"type": "exceed_context_size_error", "code": 400, "n_prompt_tokens": 321, "n_ctx": 100}
    model, _ = _open(monkeypatch, gguf, [{"error": error}])
    with pytest.raises(ContextOverflowError, match="321") as caught:
        model.generate(0, _ASK, on_text=lambda _: False)
    assert (caught.value.prompt_tokens, caught.value.context_tokens) == (321, 100)


def test_other_errors_name_their_kind_and_no_words(monkeypatch: pytest.MonkeyPatch, gguf: Path) -> None:
    error = {"type": "server_error", "code": 500, "message": "while answering: Hi"}
    model, _ = _open(monkeypatch, gguf, [{"error": error}])
    with pytest.raises(GenerationError, match=r"server_error \(500\)") as caught:
        model.generate(0, _ASK, on_text=lambda _: False)
    assert "Hi" not in str(caught.value)


def test_a_chunk_of_another_shape_is_an_error_without_words(monkeypatch: pytest.MonkeyPatch, gguf: Path) -> None:
    model, _ = _open(monkeypatch, gguf, [{"choices": [{"text": ["Hi"]}]}])
    with pytest.raises(GenerationError, match=r"unknown: Expected `str \| null`, got `array`") as caught:
        model.generate(0, _ASK, on_text=lambda _: False)
    assert "Hi" not in str(caught.value)


def test_a_generation_without_an_end_is_an_error(monkeypatch: pytest.MonkeyPatch, gguf: Path) -> None:
    model, _ = _open(monkeypatch, gguf, [_chunk("a")])
    with pytest.raises(GenerationError, match="without saying why"):
        model.generate(0, _ASK, on_text=lambda _: False)


def test_what_on_text_raises_comes_out_and_frees_the_slot(monkeypatch: pytest.MonkeyPatch, gguf: Path) -> None:
    model, engine = _open(monkeypatch, gguf, [_chunk("a"), _chunk("b", "stop")])

    def fail(text: str) -> bool:
        raise KeyError(text)

    with pytest.raises(KeyError):
        model.generate(0, _ASK, on_text=fail)
    assert engine.delivered == 1
    assert model.generate(0, _ASK, on_text=lambda _: False).text == "ab"


@pytest.mark.parametrize("slot", [-1, 2])
def test_a_slot_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch, gguf: Path, slot: int) -> None:
    model, _ = _open(monkeypatch, gguf, [])
    with pytest.raises(ValueError, match="does not exist"):
        model.generate(slot, _ASK, on_text=lambda _: False)


def test_a_closed_model_answers_nobody(monkeypatch: pytest.MonkeyPatch, gguf: Path) -> None:
    model, _ = _open(monkeypatch, gguf, [])
    model.close()
    with pytest.raises(GenerationError, match="closed"):
        model.generate(0, _ASK, on_text=lambda _: False)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, gguf: Path) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(ModelUnavailableError, match="pip install xllamacpp"):
        LanguageModel(gguf)


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailableError, match=r"other\.gguf"):
        LanguageModel(tmp_path / "other.gguf")
