"""What goes from stage to stage of the cascade: words to the language model, sentences to the voice.

Rules kept here: partial transcripts are guesses and never handed on; where nothing was said, nothing is asked.
"""

from __future__ import annotations

import msgspec

from duologue.engine.stages.edge import NOTHING, EdgeInput, EdgeResult
from duologue.outputs import ChatMessage, StagePrompt

RECOGNISE, RESPOND, SPEAK = 0, 1, 2
"""Stage numbers of the cascade."""


def words_to_model(source: EdgeInput) -> EdgeResult:
    """The conversation so far, and what the user has just said as its last message."""
    if not source.final:
        return NOTHING
    entry = source.entry_prompt
    words = source.output.text.strip()
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
