"""What goes from stage to stage of the cascade: words to the language model, sentences to the voice.

Rules kept here: a partial transcript is a guess, which a model may read ahead and never answers; where nothing was said,
nothing is asked.
"""

from __future__ import annotations

import msgspec

from duologue.engine.stages.edge import NOTHING, EdgeInput, EdgeResult
from duologue.outputs import ChatMessage, StagePrompt

RECOGNISE, RESPOND, SPEAK = 0, 1, 2
"""Stage numbers of the cascade."""


PREFILL = "prefill"
"""Option of a piece that only says what is likely to be asked, so that the model can read it ahead."""

PAUSE = "pause"
"""Option of a piece, and metadata of its words: speech broke off here, so what was said may be complete."""

QUIET = "quiet"
"""Option of a piece: there is no speech in it."""

DRAFT = "draft"
"""Option beside ``PREFILL``: the question may be complete, so the answer may be begun. Nobody has asked for it yet."""


def words_to_model(source: EdgeInput) -> EdgeResult:
    """The conversation so far, and what the user has just said as its last message.

    A partial transcript goes ahead as a hint: most of it will stand at the same place in the final prompt.
    """
    entry = source.entry_prompt
    words = source.output.text.strip()
    if not source.final:
        if not words:
            return NOTHING
        hint = {**entry.options, PREFILL: True, DRAFT: source.output.metadata.get(PAUSE) is True}
        messages = (*entry.messages, ChatMessage("user", words))
        return msgspec.structs.replace(entry, audio=b"", audio_rate_hz=0, messages=messages, options=hint)
    if words:
        messages = (*entry.messages, ChatMessage("user", words))
    elif source.output.metadata.get("spoken") is True:
        return NOTHING  # noise: nobody said anything that could be answered
    else:
        messages = entry.messages
    return msgspec.structs.replace(entry, audio=b"", audio_rate_hz=0, messages=messages)


def sentence_to_voice(source: EdgeInput) -> EdgeResult:
    """One sentence at a time, as soon as it is complete."""
    if not source.text:
        return NOTHING
    return StagePrompt(text=source.text, session_key=source.entry_prompt.session_key)
