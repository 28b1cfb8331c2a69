"""Text to speech: hibari (one English voice, 24 kHz), the only file that knows it.

Rules kept here:

* the same text, seed and speed give the same bytes on the same machine;
* no text is an error: what cannot be read aloud is left out, and nothing to say is no audio;
* each word has a mark that says when it has been heard; its time comes from the model's own durations, not from an
  estimate over the sentence;
* the silence that the model puts before a sentence is cut to `LEAD_MS`: a listener waits for it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from duologue.detect.weights import ModelUnavailableError
from duologue.models.cascade.chat import never
from duologue.models.cascade.durations import OUTPUT_NAME, UNIT_SAMPLES, with_durations
from duologue.models.cascade.spoken_text import SpokenText, spoken_text

RATE_HZ = 24_000
LEAD_MS = 50
SPEED_RANGE = (0.5, 2.0)

_LONGEST_PHONEMES = 400  # what the model was trained for in one go
_LONGEST_CHARS = 20_000


class Mark(msgspec.Struct, frozen=True):
    """Once the audio has played to `end_ms`, the first `chars` characters of the text have been heard."""

    chars: int
    end_ms: int


class Speech(msgspec.Struct, frozen=True):
    """Spoken text: PCM16 (little-endian, mono, 24 kHz) and one mark per word, both in order.

    The last mark covers the whole text at the end of the audio; there is none if there is no audio.
    """

    pcm16: bytes
    marks: tuple[Mark, ...]

    @property
    def duration_ms(self) -> int:
        return len(self.pcm16) * 1000 // (2 * RATE_HZ)


class Word(msgspec.Struct, frozen=True):
    """A token's phonemes and where its text ends in the original."""

    phonemes: str
    end: int


class Synthesiser:
    """The voice. One instance serves all sessions of a process, one call at a time."""

    def __init__(self, *, threads: int = 1) -> None:
        """Load the voice that comes with hibari-tts. Raises ModelUnavailableError if the package is missing."""
        try:
            # By name, because the library ships no types and must not be loaded by whoever merely imports us.
            library = importlib.import_module("hibari")
            normaliser = importlib.import_module("hibari.g2p.normalize")
            self._dsp: Any = importlib.import_module("hibari.dsp")
            voices = importlib.import_module("hibari.voices")
        except ImportError as error:
            raise ModelUnavailableError(f"cannot speak without hibari-tts ({error}): pip install hibari-tts") from error
        model = with_durations(Path(voices.voice_path(voices.DEFAULT, False)).read_bytes())
        self._voice: Any = library.Hibari(model=model, threads=threads)
        self._normalise: Callable[[str], str] = normaliser.normalize
        # Half of the library loads on first use, which must not be the first sentence anybody waits for.
        self.synthesize("Ready, zzyzx.")

    def synthesize(
        self, text: str, *, seed: int = 0, speed: float = 1.0, cancelled: Callable[[], bool] = never
    ) -> Speech:
        """Say `text` at `speed` (1.0 is normal; values outside 0.5 to 2.0 are clamped).

        `cancelled` is asked before each sentence; once it says True, what has been said so far is returned.
        Raises ValueError for more than 20,000 characters.
        """
        if len(text) > _LONGEST_CHARS:
            raise ValueError(f"{len(text)} characters in one call, at most {_LONGEST_CHARS}")
        rng = np.random.default_rng(seed & 0xFFFFFFFF)
        pace = float(np.clip(speed, *SPEED_RANGE)) if np.isfinite(speed) else 1.0
        audio: list[NDArray[np.float32]] = []
        marks: list[Mark] = []
        samples = 0
        for words in self._utterances(text):
            if cancelled():
                break
            wave, ends = self._say(words, pace, rng)
            marks += [
                Mark(word.end, (samples + end) * 1000 // RATE_HZ)
                for word, end in zip(words, ends, strict=True)
                if word.phonemes.strip()
            ]
            audio.append(wave)
            samples += len(wave)
        if not audio:
            return Speech(b"", ())
        complete = not cancelled()
        pcm = np.rint(np.clip(np.concatenate(audio), -1.0, 1.0) * 32767).astype("<i2").tobytes()
        duration_ms = samples * 1000 // RATE_HZ
        return Speech(pcm, ordered_marks(marks, len(text) if complete else None, duration_ms))

    def _utterances(self, text: str) -> Iterator[list[Word]]:
        """The words of each stretch that the model says in one go; stretches without anything to say are left out."""
        spoken = spoken_text(text)
        position = 0
        for sentence in self._voice.split_sentences(spoken.text):
            start = spoken.text.index(sentence, position)
            position = start + len(sentence)
            part = SpokenText(sentence, spoken.origins[start : position + 1])
            normal = part.rewritten(self._normalise(sentence))
            tokens = self._voice.g2p.phonemize_tokens(self._voice.g2p.tokenize(normal.text))
            words = _located([(str(t.text), t.phonemes or "", bool(t.whitespace)) for t in tokens], normal)
            for utterance in grouped(words, _LONGEST_PHONEMES):
                if any(len(self._voice.ids(word.phonemes.strip())) > 2 for word in utterance):
                    yield utterance

    def _say(
        self, words: Sequence[Word], speed: float, rng: np.random.Generator
    ) -> tuple[NDArray[np.float32], list[int]]:
        """Samples of one stretch and, for each word, the sample at which it ends."""
        ids = self._voice.ids("".join(word.phonemes for word in words))
        feeds = {"ids": np.asarray([ids], np.int64), "speed": np.asarray([speed], np.float32)}
        names = ("lh", "theta", "ln", "lr", "phi", "f0")
        *spectrum, totals = self._voice.sess.run([*names, OUTPUT_NAME], feeds)
        wave: NDArray[np.float32] = self._dsp.synth(*(part[0] for part in spectrum), rng)
        lead = max(0, int(totals[0]) * UNIT_SAMPLES - LEAD_MS * RATE_HZ // 1000)
        ends: list[int] = []
        last = 0  # index into ids: the pad before the first phoneme
        for word in words:
            last += len(self._voice.ids(word.phonemes)) - 2
            ends.append(min(len(wave), int(totals[last]) * UNIT_SAMPLES) - lead)
        return wave[lead:], ends


def _located(tokens: Sequence[tuple[str, str, bool]], spoken: SpokenText) -> list[Word]:
    """Tokens (text, phonemes, whether space follows) with the position in the original at which each ends."""
    words: list[Word] = []
    position = 0
    for text, phonemes, spaced in tokens:
        found = spoken.text.find(text, position)
        if found >= 0:  # a token that is not in the text was invented by the reader: it ends where the last one did
            position = found + len(text)
        words.append(Word(phonemes + (" " if spaced else ""), spoken.origins[position]))
    return words


def grouped(words: Sequence[Word], longest: int) -> Iterator[list[Word]]:
    """Consecutive words with at most `longest` phonemes together; a longer single word stands alone."""
    group: list[Word] = []
    size = 0
    for word in words:
        if group and size + len(word.phonemes) > longest:
            yield group
            group, size = [], 0
        group.append(word)
        size += len(word.phonemes)
    if group:
        yield group


def ordered_marks(marks: Sequence[Mark], whole_chars: int | None, duration_ms: int) -> tuple[Mark, ...]:
    """Marks with rising characters and times; the last covers `whole_chars` at the end of the audio, if given."""
    kept: list[Mark] = []
    for mark in marks:
        previous = kept[-1] if kept else Mark(0, 0)
        if mark.chars > previous.chars and mark.end_ms >= previous.end_ms:
            kept.append(mark)
    if whole_chars is not None:
        while kept and kept[-1].chars >= whole_chars:
            kept.pop()
        kept.append(Mark(whole_chars, duration_ms))
    return tuple(kept)
