"""G.711 companding: mu-law and A-law to 16-bit samples and back, by table.

The tables are computed from the rule of ITU-T G.711 (eight segments of sixteen steps, bits inverted on the
line) once, at import. Negative samples take the one's complement as magnitude, as the ITU's own software
library does, so that the most negative sample needs no special case.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.uint8]
Samples = NDArray[np.int16]

_MU_BIAS: Final = 132  # 33 in the 14-bit scale of the recommendation
_LARGEST: Final = 32_767


def _mu_expand() -> Samples:
    code = ~np.arange(256, dtype=np.uint8)
    segment = ((code >> 4) & 7).astype(np.int32)
    step = (code & 15).astype(np.int32)
    magnitude = (((step << 3) + _MU_BIAS) << segment) - _MU_BIAS
    return np.where(code & 0x80, -magnitude, magnitude).astype(np.int16)


def _a_expand() -> Samples:
    code = np.arange(256, dtype=np.uint8) ^ np.uint8(0x55)
    segment = ((code >> 4) & 7).astype(np.int32)
    step = (code & 15).astype(np.int32)
    linear = (step << 4) + 8
    curved = ((step << 4) + 264) << np.maximum(segment - 1, 0)
    magnitude = np.where(segment == 0, linear, curved)
    return np.where(code & 0x80, magnitude, -magnitude).astype(np.int16)


def _magnitudes() -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    # Index order is that of the sample's bits read as unsigned: 0..32767, then -32768..-1.
    sample = np.arange(65_536, dtype=np.uint16).view(np.int16).astype(np.int32)
    negative = sample < 0
    return np.where(negative, ~sample, sample), negative


def _mu_compress() -> Codes:
    magnitude, negative = _magnitudes()
    biased = np.minimum(magnitude + _MU_BIAS, _LARGEST)
    segment = np.frexp(biased.astype(np.float64))[1] - 8
    step = (biased >> (segment + 3)) & 15
    code: Codes = ~((negative << 7) | (segment << 4) | step).astype(np.uint8)
    return code


def _a_compress() -> Codes:
    magnitude, negative = _magnitudes()
    level = magnitude >> 4
    segment = np.maximum(np.frexp(level.astype(np.float64))[1] - 4, 0)
    step = (level >> np.maximum(segment - 1, 0)) & 15
    code: Codes = (np.where(negative, 0, 0x80) | (segment << 4) | step).astype(np.uint8) ^ np.uint8(0x55)
    return code


EXPAND: Final[dict[str, Samples]] = {"pcmu": _mu_expand(), "pcma": _a_expand()}
COMPRESS: Final[dict[str, Codes]] = {"pcmu": _mu_compress(), "pcma": _a_compress()}


def expand(law: str, codes: bytes) -> Samples:
    """Samples (int16, one per byte) of G.711 `codes`; `law` is "pcmu" or "pcma"."""
    return EXPAND[law].take(np.frombuffer(codes, np.uint8))


def compress(law: str, samples: Samples) -> Codes:
    """G.711 codes (uint8, one per sample) of int16 `samples`; `law` is "pcmu" or "pcma"."""
    return COMPRESS[law].take(samples.view(np.uint16))
