"""What the user says in the demo: four turns, as sound.

The human recording comes with the set-up; its wording was established with the recogniser (the most likely grammatical
reading of it), since the package that carries it has no transcript. The other voice is the synthesiser's, made deeper.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from duologue.audio import Resampler, read_wav
from duologue.demo.microphone import Utterance, annotate
from duologue.detect.weights import ModelUnavailableError
from duologue.models.cascade.synthesiser import Synthesiser
from duologue.models.cascade.voice import USER, speak


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """A human voice: a file of the models folder, how much of it, and what is said there."""

    file: str
    text: str
    longest_s: float


RECORDINGS = (
    Recording(file="clone-test.wav", text="I do. I think that America could do it very well.", longest_s=10.0),
    Recording(file="beckett.wav", text="Ever tried. Ever failed. No matter. Try again.", longest_s=5.5),
)
# Chosen so that the voice makes no pause in them that could be taken for the end of the turn.
QUESTION = "How many legs does a spider have?"
LONG_REQUEST = "Tell me a long story about a dog in a lighthouse."
FOLLOW_UP = "Sorry but who lives in the lighthouse?"


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """The four turns."""

    recording: Utterance
    question: Utterance
    long_request: Utterance
    follow_up: Utterance


def read_recording(models_dir: Path, rate_hz: int) -> Utterance:
    """The first recording that is there, at `rate_hz`. Raises ModelUnavailableError if none is."""
    for recording in RECORDINGS:
        path = models_dir / recording.file
        if path.is_file():
            pcm16, file_rate_hz = read_wav(path)
            pcm16 = pcm16[: 2 * int(recording.longest_s * file_rate_hz)]
            if file_rate_hz != rate_hz:
                resampler = Resampler(file_rate_hz, rate_hz)
                pcm16 = resampler.feed(pcm16) + resampler.flush()
            return annotate(recording.text, pcm16, rate_hz)
    names = " or ".join(recording.file for recording in RECORDINGS)
    raise ModelUnavailableError(f"no recording of a voice ({names}) in {models_dir}: run `duologue setup`")


def write_script(models_dir: Path, rate_hz: int) -> Script:
    """All four utterances at `rate_hz`; takes about two seconds. Raises ModelUnavailableError."""
    recording = read_recording(models_dir, rate_hz)
    synthesiser = Synthesiser()

    def say(text: str) -> Utterance:
        return annotate(text, speak(synthesiser, text, USER, rate_hz=rate_hz), rate_hz)

    return Script(
        recording=recording,
        question=say(QUESTION),
        long_request=say(LONG_REQUEST),
        follow_up=say(FOLLOW_UP),
    )
