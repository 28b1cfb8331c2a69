"""Sample formats, decoding, encoding, rate conversion, WAV files and levels of mono audio.

Imports numpy and soxr, and nothing of this package outside this directory.
"""

from .decoder import DETECTOR_RATE_HZ, AudioDecoder, DualDecoder
from .encoder import AudioEncoder
from .format import MAX_RATE_HZ, MIN_RATE_HZ, AudioFormat, AudioFormatError, Encoding
from .level import SILENCE_DBFS, rms_dbfs
from .payload import AudioDataError, decode_base64
from .resample import Resampler
from .wav import interleave, read_wav, write_wav

__all__ = [
    "DETECTOR_RATE_HZ",
    "MAX_RATE_HZ",
    "MIN_RATE_HZ",
    "SILENCE_DBFS",
    "AudioDataError",
    "AudioDecoder",
    "AudioEncoder",
    "AudioFormat",
    "AudioFormatError",
    "DualDecoder",
    "Encoding",
    "Resampler",
    "decode_base64",
    "interleave",
    "read_wav",
    "rms_dbfs",
    "write_wav",
]
