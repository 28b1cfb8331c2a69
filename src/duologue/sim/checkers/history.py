"""The conversation as the model is told it: only what was said and sent, in order (B18)."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from duologue.engine.duplex.events import ResponseAudio, ResponseText
from duologue.sim.checkers.evidence import Evidence, SessionEvidence, Violation, by_request
from duologue.sim.observation import Fed


def check(evidence: Evidence) -> Iterator[Violation]:
    """Every session of a model that is given the conversation."""
    for session in evidence.sessions():
        if session.site.plan.family == "ephemeral":
            yield from _prompts(session)


def _prompts(session: SessionEvidence) -> Iterator[Violation]:
    said: dict[str, list[tuple[float, str]]] = {}
    since: dict[str, float] = {}  # what was found to have been said by then: an answer stands in every later prompt too
    for told in session.told:
        event = told.event
        if isinstance(event, ResponseAudio | ResponseText) and event.text:
            said.setdefault(event.response_id, []).append((told.at, event.text))
    answered = by_request(session.site.seen.input, session.session_id, 1)
    for request_id, pieces in by_request(session.site.seen.input, session.session_id, 0).items():
        if request_id not in answered:
            continue  # only a transcript was wanted: what else the request held had no consequence
        for fed in pieces:
            if not fed.prompt.final:
                continue  # heard early, while the answer before it still went on: what counts is its last piece
            if any("must not be adopted" in message.text for message in fed.prompt.messages):
                yield Violation("B22", f"{session.session_id}: a refused instruction reached the model")
            for text in _unheard(fed, said, since):
                text = f"the model is told that it said {text[:60]!r}, which nobody was sent"
                yield Violation("B18", f"{session.session_id}: {text}")


def _unheard(fed: Fed, said: dict[str, list[tuple[float, str]]], since: dict[str, float]) -> Iterator[str]:
    """What a prompt says of the model that it had not said by then."""
    for message in fed.prompt.messages:
        if message.role != "assistant" or message.calls or since.get(message.text, inf) <= fed.at:
            continue
        if _heard(message.text, said, fed.at):
            since[message.text] = fed.at
        else:
            yield message.text


def _heard(text: str, said: dict[str, list[tuple[float, str]]], at: float) -> bool:
    """Whether ``text`` begins what one response had said by then, or a client wrote it."""
    if text.startswith("Written "):
        return True
    whole = ("".join(piece for when, piece in pieces if when <= at) for pieces in said.values())
    return any(one.startswith(text) or one.strip().startswith(text.strip()) for one in whole)
