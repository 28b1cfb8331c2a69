"""The engines ask for the files that set-up places."""

from __future__ import annotations

from duologue.detect import speech, turn_end
from duologue.models.cascade import language_model, recogniser
from duologue.setup import WEIGHTS


def test_every_file_an_engine_loads_is_one_that_setup_fetches() -> None:
    wanted = {
        speech.MODEL_FILE,
        turn_end.MODEL_FILE,
        recogniser.ENCODER_FILE,
        recogniser.DECODER_FILE,
        recogniser.VOCABULARY_FILE,
        language_model.MODEL_FILE,
    }
    assert wanted <= {weight.name for weight in WEIGHTS}
