"""Input and output: what is fed is what was sent, and what arrives is what was made."""

from __future__ import annotations

from typing import Final

from duologue.sim.mutations.edit import CORE, ENGINE, SERVER, Edit, Mutation, one

_INPUT: Final = (
    one(
        "tail out of order",
        "submission order is wire order",
        f"{CORE}.tail:AppendTail.next",
        "self.queue.popleft()",
        "self.queue.pop()",
    ),
    Mutation(
        "submitted behind a failure",
        "nothing behind an append that failed is submitted, neither from the tail nor for a request that is gone",
        (
            Edit(f"{CORE}.settlement:failed", "s.tail.void()", "pass"),
            Edit(f"{CORE}.settlement:failed", "s.requests.remove(request_id)", "s.requests.get(request_id)"),
        ),
    ),
    one(
        "rejected units lost",
        "input that no stage took returns to the buffer",
        f"{CORE}.settlement:failed",
        "resident.give_back(s, behind)",
        "pass",
    ),
    one(
        "prefix off by a sample",
        "what the model is fed is what was sent",
        f"{CORE}.audio:AudioLedger.copy",
        "low = max(0, start - begin) * 2",
        "low = max(0, start - begin) * 2 + 2",
    ),
    one(
        "turn begins late",
        "a turn begins before its onset",
        f"{CORE}.turns:onset",
        "position - s.audio.samples(detection.prefix_padding_ms)",
        "position + 800",
    ),
    one(
        "no watchdog for a turn without input",
        "a turn whose input stops is ended",
        f"{CORE}.intake:starvation_at",
        "if s.turn is None or",
        "if True or",
    ),
    one(
        "early commands lost",
        "what a client sends while its session is being opened is kept",
        f"{SERVER}.connection:Connection._go_live",
        'while self._early and self.state == "live":',
        "while False:",
    ),
)
_OUTPUT: Final = (
    one(
        "nothing is withdrawn",
        "what no socket has taken is not sent after a cancel",
        f"{CORE}.pacing:invalidate",
        "s.do(InvalidateOutput(response_id=response_id))",
        "pass",
    ),
    one(
        "last queue not purged",
        "the queue before the socket drops what was withdrawn",
        f"{SERVER}.attachment:Attachment.deliver",
        "self._purge(message.response_id)",
        "pass",
    ),
    one(
        "no pacing",
        "audio leaves when it is about to be played",
        f"{CORE}.pacing:due",
        "if send_ahead_ms is not None and",
        "if False and",
    ),
    one(
        "slice lost",
        "audio is delivered without a gap",
        f"{CORE}.outbox:Outbox.slice",
        "entry.offset += len(piece)",
        "entry.offset += len(piece) + (2 if entry.offset > 9_000 else 0)",
    ),
    one(
        "unheard text told to the model",
        "the conversation holds what was heard",
        f"{CORE}.history:Item.heard_text",
        "self.spoken.text if cut is None else self.spoken.heard(int(cut))",
        "self.spoken.text",
    ),
    one(
        "listening said with every unit",
        "that a model listens is said once",
        f"{CORE}.state:SessionState.say_that_the_model_listens",
        "said != self.listening and",
        "",
    ),
    one(
        "paused for ever",
        "held pieces are released",
        f"{ENGINE}.orchestrator:OrchestratorBase.set_paused",
        "if not paused and state.held:",
        "if False:",
    ),
)

MEDIA: Final[tuple[Mutation, ...]] = (*_INPUT, *_OUTPUT)
