"""What a scripted model does: how long it takes, what it hears, how much it answers, and where it fails."""

from __future__ import annotations

from typing import Literal

import msgspec

from duologue.outputs import ToolMenu

FaultKind = Literal["raise", "error", "hang", "silent"]


class ScriptedFault(msgspec.Struct, frozen=True, kw_only=True):
    """A stage that misbehaves when the text it works on contains ``when`` (empty: always).

    ``raise``: the stage code raises. ``error``: it reports an error. ``hang``: it never answers. ``silent``: it finishes
    with nothing.
    """

    stage_id: int
    kind: FaultKind
    when: str = ""


class ScriptedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A question that contains ``when`` makes the model ask for ``name``, if it is offered, ``times`` over.

    ``says`` sentences are said first. The question that a result answers is answered with the result. A resident model is
    asked ``answer N`` and says so many units first; it talks on, and a result gets a unit of its own.
    """

    when: str
    name: str
    arguments: str = "{}"
    says: int = 0
    times: int = 1


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds or milliseconds as named.

    ``transcripts``: what an utterance of loudness level *i* says (index modulo length); empty: a description of the
    audio. ``sentences`` of ``sentence_ms`` audio each, in chunks of ``chunk_ms``, are answered. ``think_s`` passes before
    each sentence, ``speak_s`` before each chunk. ``unit_ms``, ``quiet_units`` and ``answer_units`` are those of the
    resident family: after speech and so many quiet units it answers so many units; ``rebuilds``: its sessions survive the
    loss of a replica; ``context_units``: how much fits into its context (0: no limit); ``compacts``: it can be rolled over.
    A question that contains ``filtered`` is answered by one sentence, at which a content filter ends the answer.
    """

    transcripts: tuple[str, ...] = ()
    sentences: int = 2
    sentence_ms: int = 400
    chunk_ms: int = 100
    recognise_s: float = 0.02
    think_s: float = 0.03
    speak_s: float = 0.01
    streams_input: bool = False
    stream_interval_ms: int = 320
    unit_ms: int = 200
    unit_s: float = 0.01
    quiet_units: int = 2
    answer_units: int = 4
    rebuilds: bool = False
    context_units: int = 0
    compacts: bool = False
    faults: tuple[ScriptedFault, ...] = ()
    calls: tuple[ScriptedCall, ...] = ()
    filtered: str | None = None

    def call(self, text: str, menu: ToolMenu | None) -> ScriptedCall | None:
        """What the model asks for when it is asked ``text`` and may call the functions of ``menu``."""
        offered = {tool.name for tool in menu.tools} if menu is not None else set()
        return next((call for call in self.calls if call.when in text and call.name in offered), None)

    def fault(self, stage_id: int, text: str) -> FaultKind | None:
        """How stage ``stage_id`` misbehaves on ``text``."""
        for fault in self.faults:
            if fault.stage_id == stage_id and fault.when in text:
                return fault.kind
        return None
