"""Speech to text: Moonshine tiny-en (16 kHz, English).

Rules kept here:

* silence, noise, no audio and audio too short to hold a syllable give an empty string, never an error;
* the work is bounded: at most so many tokens per second of audio, and a loop ends the segment;
* audio longer than about 20 s is cut at its quietest places and recognised piece by piece (the model was made for
  utterances), up to `LONGEST_S`; what lies beyond is not recognised and said so by an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from duologue.detect.onnx import OnnxGraph, Tensor
from duologue.models.cascade.quiet import RATE_HZ, Samples, is_audible, samples_from_pcm16, segments
from duologue.models.cascade.repetition import loop_start
from duologue.models.cascade.vocabulary import Vocabulary

ENCODER_FILE = "encoder_model.ort"
DECODER_FILE = "decoder_model_merged.ort"
VOCABULARY_FILE = "tokenizer.bin"
LONGEST_S = 120.0

_PADDING_S = 0.3  # silence on both sides; without it the first and last words suffer
_SHORTEST_S = 0.1
_TOKENS_PER_S = 7.0  # fast speech is about 5
_TOKENS_AT_LEAST = 6
_START_TOKEN, _END_TOKEN = 1, 2
_LAYERS, _HEADS, _HEAD_WIDTH = 6, 8, 36

_SELF_CACHE = tuple(f"{layer}.decoder.{part}" for layer in range(_LAYERS) for part in ("key", "value"))
_CROSS_CACHE = tuple(f"{layer}.encoder.{part}" for layer in range(_LAYERS) for part in ("key", "value"))


# What this model says to noise, hum and room tone, word for word. A person's "you" comes with punctuation.
_NOISE_TEXTS = frozenset({"You", "Thank you", "Thank you for watching!", "Thanks for watching!"})


def _never() -> bool:
    return False


@dataclass(slots=True)
class Memory:
    """What was understood of a recording so far (its tokens): most of it will stand when there is more of it."""

    tokens: list[int] = field(default_factory=list)


class Recogniser:
    """The model. One instance serves all sessions of a process, one call at a time."""

    def __init__(self, models_dir: Path, *, threads: int = 1) -> None:
        """Load the weights from `models_dir`. Raises ModelUnavailableError if they or onnxruntime are missing."""
        self._vocabulary = Vocabulary.load(models_dir / VOCABULARY_FILE)
        self._encoder = OnnxGraph(models_dir / ENCODER_FILE, threads=threads)
        self._decoder = OnnxGraph(models_dir / DECODER_FILE, threads=threads)

    def transcribe(self, pcm16: bytes, *, cancelled: Callable[[], bool] = _never, memory: Memory | None = None) -> str:
        """Words in `pcm16` (little-endian, mono, 16 kHz), as one line with punctuation; "" if there are none.

        `cancelled` is asked before each piece and each token; once it says True the text so far is returned.
        `memory` belongs to one recording that grows from call to call: what it holds is checked in one go instead of being
        found anew word by word. It makes the answer earlier, not different.
        Raises ValueError for more than `LONGEST_S` of audio.
        """
        samples = samples_from_pcm16(pcm16)
        if len(samples) > LONGEST_S * RATE_HZ:
            raise ValueError(f"{len(samples) / RATE_HZ:.0f} s of audio in one call, at most {LONGEST_S:.0f} s")
        pieces = segments(samples)
        if memory is None or len(pieces) > 1:
            memory = Memory()
        texts: list[str] = []
        for start, end in pieces:
            if cancelled():
                break
            piece = samples[start:end]
            if len(piece) >= _SHORTEST_S * RATE_HZ and is_audible(piece):
                memory.tokens = self._recognise(piece, cancelled, memory.tokens if len(pieces) == 1 else ())
                texts.append(self._text(memory.tokens))
        return " ".join(text for text in texts if text)

    def _recognise(self, samples: Samples, cancelled: Callable[[], bool], guess: Sequence[int]) -> list[int]:
        padded = np.pad(samples, round(_PADDING_S * RATE_HZ))[None]
        # Counted in samples for both graphs, though the decoder sees frames: it divides by itself.
        mask = np.ones(padded.shape, np.int64)
        (hidden,) = self._encoder.run({"input_values": padded, "attention_mask": mask}, ("last_hidden_state",))
        limit = _TOKENS_AT_LEAST + int(_TOKENS_PER_S * len(samples) / RATE_HZ)
        return self._decode(hidden, mask, limit, cancelled, guess)

    def _text(self, tokens: Sequence[int]) -> str:
        text = self._vocabulary.decode(tokens)
        return "" if text in _NOISE_TEXTS or not any(char.isalnum() for char in text) else text

    def _decode(
        self,
        hidden: Tensor,
        mask: NDArray[np.int64],
        limit: int,
        cancelled: Callable[[], bool],
        guess: Sequence[int] = (),
    ) -> list[int]:
        """Greedy decoding of at most `limit` tokens. What `guess` has right at its beginning takes one step."""
        empty = np.zeros((1, _HEADS, 0, _HEAD_WIDTH), np.float32)
        feeds: dict[str, Tensor] = {
            "encoder_attention_mask": mask,
            "encoder_hidden_states": hidden,
            "input_ids": np.array([[_START_TOKEN, *guess]], np.int64),
            "use_cache_branch": np.array([False]),
            **{f"past_key_values.{name}": empty for name in _SELF_CACHE + _CROSS_CACHE},
        }
        # The cross-attention cache depends on the audio alone: fetched once, then fed back unchanged.
        wanted = _SELF_CACHE + _CROSS_CACHE
        tokens: list[int] = []
        while len(tokens) < limit and not cancelled():
            logits, *present = self._decoder.run(feeds, ("logits", *(f"present.{name}" for name in wanted)))
            found = np.argmax(logits[0], axis=-1).tolist()  # what follows each token that went in
            right = _agreement(guess, found)
            for token in found[: right + 1]:
                if token == _END_TOKEN or len(tokens) == limit:
                    return tokens
                tokens.append(token)
                cut = loop_start(tokens)
                if cut is not None:
                    return tokens[:cut]
            for name, tensor in zip(wanted, present, strict=True):
                # Beyond the first error of a guess the decoder remembers what was not said.
                wrong = right < len(guess) and name in _SELF_CACHE
                feeds[f"past_key_values.{name}"] = np.ascontiguousarray(tensor[:, :, : right + 1]) if wrong else tensor
            wanted, guess = _SELF_CACHE, ()
            feeds["input_ids"] = np.array([[tokens[-1]]], np.int64)
            feeds["use_cache_branch"] = np.array([True])
        return tokens


def _agreement(guess: Sequence[int], found: Sequence[int]) -> int:
    """How many tokens of `guess` are what was found, from the beginning."""
    pairs = enumerate(zip(guess, found, strict=False))
    return next((position for position, (guessed, token) in pairs if guessed != token), len(guess))
