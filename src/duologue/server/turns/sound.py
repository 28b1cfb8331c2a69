"""Audio of ordinary requests: recordings in, spoken answers out.

Rules kept here: what comes in becomes PCM16 mono at the model's rate, or an error that says what is read; what goes out is
PCM16 mono at 24 kHz, bare or as a WAV file; a recording is cut only in its quietest places.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final, Literal

import numpy as np

from duologue.audio import AudioDataError, AudioDecoder, AudioEncoder, AudioFormat, AudioFormatError, decode_base64
from duologue.audio.wav import AudioTooLongError, parse_wav, wav_header
from duologue.errors import ClientFault, ErrorCode
from duologue.outputs import RequestOutput

OUTPUT_RATE_HZ: Final = 24_000
PIECE_BYTES: Final = OUTPUT_RATE_HZ  # half a second
AnswerFormat = Literal["wav", "pcm16"]

_FORMATS: Final[dict[str, AnswerFormat]] = {"wav": "wav", "pcm": "pcm16", "pcm16": "pcm16"}
_BLOCK_MS: Final = 20
_PAUSE_BLOCKS: Final = 10  # a pause between words is longer than a stop consonant
_LEAST_SHARE: Final = 0.4  # of the longest piece: shorter ones hold too little of a sentence


class Recording:
    """What a client recorded: PCM16 mono at ``rate_hz``."""

    __slots__ = ("pcm16", "rate_hz")

    def __init__(self, pcm16: bytes, rate_hz: int) -> None:
        self.pcm16 = pcm16
        self.rate_hz = rate_hz

    @property
    def duration_s(self) -> float:
        return len(self.pcm16) / 2 / self.rate_hz


def answer_format(name: str, param: str) -> AnswerFormat:
    """The format that a client calls ``name``. Raises :class:`ClientFault` (``unsupported_audio_format``)."""
    known = _FORMATS.get(name)
    if known is None:
        raise ClientFault(
            ErrorCode.UNSUPPORTED_AUDIO_FORMAT,
            f"Audio is sent as wav or pcm (16 bit, 24 kHz, mono), not as {name[:40]!r}.",
            param=param,
        )
    return known


def read_recording(
    content: bytes, rate_hz: int, *, longest_s: float, param: str, raw_rate_hz: int | None = None
) -> Recording:
    """A recording at ``rate_hz``. ``raw_rate_hz``: it is bare PCM16 at this rate, else a WAV file. Takes its time.

    Raises :class:`ClientFault`: ``bad_audio``, ``unsupported_audio_format``, or ``event_too_large`` above ``longest_s``.
    """
    try:
        if raw_rate_hz is None:
            pcm16, own_rate_hz = parse_wav(content, name="The recording", longest_s=longest_s)
        else:
            pcm16, own_rate_hz = content[: len(content) & ~1], raw_rate_hz
        decoder = AudioDecoder(AudioFormat("pcm16", own_rate_hz), rate_hz)
    except AudioTooLongError as fault:
        raise ClientFault(ErrorCode.EVENT_TOO_LARGE, f"{fault}.", param=param) from None
    except AudioFormatError as fault:
        hint = "send a WAV file, or bare 16 bit samples as audio/pcm"
        raise ClientFault(ErrorCode.UNSUPPORTED_AUDIO_FORMAT, f"{fault}; {hint}.", param=param) from None
    if len(pcm16) > longest_s * own_rate_hz * 2:
        raise ClientFault(
            ErrorCode.EVENT_TOO_LARGE,
            f"The recording lasts {len(pcm16) / 2 / own_rate_hz:.0f} s and the limit is {longest_s:.0f} s.",
            param=param,
        )
    return Recording(decoder.decode(pcm16) + decoder.flush(), rate_hz)


def read_base64(data: str, max_bytes: int, param: str) -> bytes:
    """The bytes of a recording in a JSON body. Raises :class:`ClientFault` (``bad_audio``, ``event_too_large``)."""
    try:
        return decode_base64(data, max_bytes)
    except AudioDataError as fault:
        code = ErrorCode.EVENT_TOO_LARGE if fault.code == "too_large" else ErrorCode.BAD_AUDIO
        raise ClientFault(code, f"{fault}.", param=param) from None


def utterances(recording: Recording, longest_ms: int) -> list[tuple[int, int]]:
    """Cut a recording into pieces of at most ``longest_ms``, in its quietest places.

    Returns (first sample, end sample) of each, in order, without gap or overlap.
    """
    samples = np.frombuffer(recording.pcm16, "<i2")
    block = recording.rate_hz * _BLOCK_MS // 1000
    longest = max(2 * _PAUSE_BLOCKS, longest_ms // _BLOCK_MS)
    blocks = samples[: len(samples) // block * block].reshape(-1, block)
    energy = np.square(blocks.astype(np.float32)).mean(axis=1) if len(blocks) > longest else np.empty(0, np.float32)
    cuts = [0]
    while len(blocks) - cuts[-1] > longest:
        first = cuts[-1] + int(longest * _LEAST_SHARE)
        window = energy[first : cuts[-1] + longest]
        smooth = np.convolve(window, np.full(_PAUSE_BLOCKS, 1 / _PAUSE_BLOCKS), mode="valid")
        cuts.append(first + int(np.argmin(smooth)) + _PAUSE_BLOCKS // 2)
    edges = [cut * block for cut in cuts] + [len(samples)]
    return [(start, end) for start, end in pairwise(edges) if end > start]


class AnswerAudio:
    """A spoken answer on its way out: the outputs of a stage in, bytes for the client out."""

    def __init__(self, kind: AnswerFormat, *, streamed: bool) -> None:
        """``streamed``: a WAV file begins before its length is known."""
        self._kind = kind
        self._streamed = streamed
        self._begun = False
        self._encoder: AudioEncoder | None = None

    def encode(self, output: RequestOutput) -> bytes:
        """What ``output`` adds."""
        if not output.audio:
            return b""
        held = b""
        if self._encoder is None or self._encoder.input_rate_hz != output.audio_rate_hz:
            held = b"" if self._encoder is None else self._encoder.flush()
            self._encoder = AudioEncoder(AudioFormat("pcm16", OUTPUT_RATE_HZ), output.audio_rate_hz)
        return self._head() + held + self._encoder.encode(output.audio)

    def finish(self) -> bytes:
        """What was held back."""
        tail = b"" if self._encoder is None else self._encoder.flush()
        return self._head() + tail

    def whole(self, pcm16: bytes) -> bytes:
        """The file for an answer that was collected."""
        return wav_header(OUTPUT_RATE_HZ, len(pcm16)) + pcm16 if self._kind == "wav" else pcm16

    def _head(self) -> bytes:
        if self._begun or not self._streamed or self._kind != "wav":
            return b""
        self._begun = True
        return wav_header(OUTPUT_RATE_HZ, None)


def slices(data: bytes) -> Iterator[bytes]:
    """``data`` in pieces of at most half a second, so that a slow reader is noticed between them."""
    for start in range(0, len(data), PIECE_BYTES):
        yield data[start : start + PIECE_BYTES]
