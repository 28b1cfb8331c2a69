"""What happens between the person and the server: the four turns, and the scene in which a worker is killed.

Rules kept here: a scene drives and never judges; it goes on as far as it can, so that the report can say how far it
came; it needs a session and nothing else of the server.
"""

from __future__ import annotations

from typing import Final

from duologue.client import ClientError, RequestError
from duologue.demo.conversation import Conversation
from duologue.demo.script import Script
from duologue.wire.objects import AudioFormatParams, AudioParams, InputAudioParams, OutputAudioParams, Session

RATE_HZ: Final = 24_000
INTERRUPT_AFTER_MS: Final = 2000.0
SHORT_ANSWER_TOKENS: Final = 48  # the small model rambles; a person would not wait for it
_LAST_ANSWER_S: Final = 8.0
_SHORT_ANSWER_S: Final = 15.0


def opening_settings() -> Session:
    """PCM16 at 24 kHz both ways, short answers; all else is the server's default."""
    pcm16 = AudioFormatParams(type="audio/pcm", rate=RATE_HZ)
    audio = AudioParams(input=InputAudioParams(format=pcm16), output=OutputAudioParams(format=pcm16))
    return Session(type="realtime", audio=audio, max_output_tokens=SHORT_ANSWER_TOKENS)


async def four_turns(conversation: Conversation, script: Script) -> None:
    """A human recording, another voice, a long answer that is interrupted, and a question about it."""
    try:
        await conversation.pause()
        conversation.say(script.recording)
        await conversation.hear_out(at_most_s=_SHORT_ANSWER_S)
        conversation.say(script.question)
        await conversation.hear_out(at_most_s=_SHORT_ANSWER_S)
        await allow_long_answers(conversation)
        conversation.say(script.long_request)
        await conversation.hear(INTERRUPT_AFTER_MS)
        conversation.say(script.follow_up)
        await conversation.hear_out(at_most_s=_LAST_ANSWER_S)
        await conversation.hush()
    except ClientError as fault:
        conversation.ledger.end(str(fault), fault.code)


async def allow_long_answers(conversation: Conversation) -> None:
    """Lift the limit of `opening_settings`; a refusal is noted as an error of the session."""
    try:
        await conversation.session.update(Session(type="realtime", max_output_tokens="inf"))
    except RequestError as fault:
        conversation.ledger.errors.append(f"session.update was refused: {fault}")


async def ask_again(conversation: Conversation, script: Script) -> None:
    """The question in a session that outlived a fault."""
    try:
        conversation.say(script.question)
        await conversation.hear_out(at_most_s=_SHORT_ANSWER_S)
        await conversation.hush()
    except ClientError as fault:
        conversation.ledger.end(str(fault), fault.code)


async def one_turn(conversation: Conversation, script: Script) -> None:
    """The synthesised question alone."""
    try:
        await conversation.pause()
        conversation.say(script.question)
        await conversation.hear_out(at_most_s=_SHORT_ANSWER_S)
        await conversation.hush()
    except ClientError as fault:
        conversation.ledger.end(str(fault), fault.code)
