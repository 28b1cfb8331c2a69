"""Cost of each audio operation for an ordinary chunk (80 ms). Run it by hand; it is no test.

python tests/unit/audio/cost.py
"""

import base64
import time
from collections.abc import Callable

import numpy as np

from duologue.audio import AudioDecoder, AudioEncoder, AudioFormat, DualDecoder, decode_base64, rms_dbfs


def noise(rate_hz: int, seconds: float) -> bytes:
    samples = np.random.default_rng(0).normal(size=int(rate_hz * seconds)) * 6000
    return samples.clip(-32_768, 32_767).astype("<i2").tobytes()


def show(name: str, call: Callable[[], object], note: str = "") -> None:
    best = 1e9
    for _ in range(30):
        start = time.perf_counter()
        for _ in range(100):
            call()
        best = min(best, (time.perf_counter() - start) / 100)
    print(f"{name:44s} {best * 1e6:8.2f} us  {note}")


def main() -> None:
    pairs = [(16_000, 16_000), (24_000, 16_000), (48_000, 16_000), (44_100, 16_000), (22_050, 16_000)]
    pairs += [(11_025, 16_000), (8_000, 16_000), (12_345, 16_000), (16_000, 24_000)]
    for source, target in pairs:
        chunk = noise(source, 0.08)
        decoder = AudioDecoder(AudioFormat("pcm16", source), target)
        delay = f"holds back {decoder.delay_ms:.2f} ms"
        show(f"decode pcm16 {source} -> {target}", lambda d=decoder, c=chunk: d.decode(c), delay)  # type: ignore[misc]
    chunk = noise(24_000, 0.08)
    floats = (np.frombuffer(chunk, "<i2") / 32_768).astype("<f4").tobytes()
    decoder = AudioDecoder(AudioFormat("float32", 24_000), 24_000)
    show("decode float32 24000 -> 24000", lambda: decoder.decode(floats))
    telephone = AudioDecoder(AudioFormat("pcmu"), 16_000)
    show("decode pcmu 8000 -> 16000", lambda: telephone.decode(chunk[:640]))
    dual = DualDecoder(AudioFormat("pcm16", 24_000), 24_000)
    show("dual pcm16 24000 -> 24000 + 16000", lambda: dual.decode(chunk))
    for target_format in (AudioFormat("pcm16", 24_000), AudioFormat("pcmu"), AudioFormat("pcm16", 48_000)):
        encoder = AudioEncoder(target_format, 24_000)
        show(
            f"encode 24000 -> {target_format.encoding} {target_format.rate_hz}",
            lambda e=encoder: e.encode(chunk),  # type: ignore[misc]
        )
    text = base64.b64encode(chunk)
    show("decode_base64, bytes", lambda: decode_base64(text, 15 << 20))
    text_str = text.decode()
    show("decode_base64, str", lambda: decode_base64(text_str, 15 << 20))
    wrapped = base64.encodebytes(chunk)
    show("decode_base64, wrapped lines", lambda: decode_base64(wrapped, 15 << 20))
    show("rms_dbfs", lambda: rms_dbfs(chunk))


if __name__ == "__main__":
    main()
