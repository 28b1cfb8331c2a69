"""Edges: how the output of one stage becomes input of another.

Rules kept here:

* an edge is a typed, synchronous, pure function; it must not block, and raising fails its request and nothing else;
* a stage may feed several stages, a stage is fed by at most one, and edges only lead to later stages;
* outputs are deltas, so an edge gets everything since the last boundary in one piece.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec

from duologue.outputs import CompanionOutput, RequestOutput, StagePrompt


class Nothing(enum.Enum):
    """The type of :data:`NOTHING`."""

    NOTHING = "nothing"


NOTHING: Final = Nothing.NOTHING
"""What an edge returns when there is rightly nothing to hand on (the model chose to listen, the text is empty).

Returned for a finished source that handed on nothing before, the request ends normally and empty. ``None`` means "not
enough yet": for an unfinished source the content is kept for the next boundary, for a finished one it is an error.
"""


class EdgeInput(msgspec.Struct, frozen=True, kw_only=True):
    """What the source stage produced for one request since the last boundary, ``output`` included.

    ``audio`` is PCM16 mono at ``audio_rate_hz``. ``segment_index`` counts the boundaries of this request at the source
    from 0. ``entry_prompt`` is the latest prompt of the request's entry stage. ``final``: the source has finished.
    ``companions``: what every companion of the request produced, in the order of their roles; at the entry stage only.
    """

    request_id: str
    output: RequestOutput
    text: str
    token_ids: tuple[int, ...]
    audio: bytes
    audio_rate_hz: int
    segment_index: int
    entry_prompt: StagePrompt
    is_session: bool
    final: bool
    companions: tuple[CompanionOutput, ...] = ()


EdgeResult = StagePrompt | Literal[Nothing.NOTHING] | None
EdgeProcessor = Callable[[EdgeInput], EdgeResult]


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """``source`` feeds ``target`` through ``processor``.

    ``prewarm``: with async chunks the target gets an empty first piece as soon as the request enters the pipeline.
    ``paced``: the target gets the next piece of a request when it has finished the segment of the last one (it must, for
    each piece), so that no more than one segment comes after the request was paused.
    """

    source: int
    target: int
    processor: EdgeProcessor
    prewarm: bool = False
    paced: bool = False


def pass_on(source: EdgeInput) -> EdgeResult:
    """The plainest edge: text, tokens, audio and companions become the next stage's input as they are."""
    if not (source.text or source.token_ids or source.audio):
        return NOTHING
    return StagePrompt(
        text=source.text,
        token_ids=source.token_ids,
        audio=source.audio,
        audio_rate_hz=source.audio_rate_hz,
        session_key=source.entry_prompt.session_key,
        companions=source.companions,
    )


class Topology:
    """Which stage feeds which, checked once.

    Raises ``ValueError`` for an edge that leads to an earlier or unknown stage, or a stage that is fed twice.
    """

    __slots__ = ("_feeds", "edges", "paced", "stage_count")

    def __init__(self, edges: Sequence[Edge], stage_count: int) -> None:
        groups: list[list[Edge]] = [[] for _ in range(stage_count)]
        fed: set[int] = set()
        for edge in edges:
            if not 0 <= edge.source < edge.target < stage_count:
                raise ValueError(
                    f"an edge must lead from a stage to a later one (stages 0 to {stage_count - 1}), "
                    f"got {edge.source} -> {edge.target}"
                )
            if edge.target in fed:
                raise ValueError(f"stage {edge.target} is fed by two edges; it may have one source")
            fed.add(edge.target)
            groups[edge.source].append(edge)
        self.stage_count = stage_count
        self.edges = tuple(tuple(group) for group in groups)
        self.paced = frozenset(edge.target for edge in edges if edge.paced)
        self._feeds = tuple(
            tuple(any(edge.target <= final for edge in group) for final in range(stage_count)) for group in groups
        )

    def feeds(self, stage_id: int, final_stage_id: int) -> bool:
        """Whether a request that ends at ``final_stage_id`` goes on from ``stage_id``."""
        return self._feeds[stage_id][final_stage_id]

    def reachable(self, entry: int, final_stage_id: int) -> tuple[int, ...]:
        """``entry`` and every stage after it that its output may reach, up to ``final_stage_id``; ascending."""
        found = {entry}
        for stage_id in range(entry, self.stage_count):
            if stage_id in found:
                found.update(edge.target for edge in self.edges[stage_id] if edge.target <= final_stage_id)
        return tuple(sorted(found))
