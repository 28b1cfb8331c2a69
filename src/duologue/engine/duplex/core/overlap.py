"""What to do with speech while the assistant answers: the decision as a pure function over what is known.

Rules kept here: an acknowledgement ("mm-hm") never interrupts; the thresholds act at the moment they are crossed; the word
lists are data.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass
from operator import mul
from typing import Literal

from duologue.config.session import SessionConfig
from duologue.engine.duplex.core.words import acknowledgement_words

Action = Literal["barge_in", "listen", "drop", "pending"]

_WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*", re.UNICODE)


@dataclass(slots=True, frozen=True)
class Verdict:
    action: Action
    reason: str


@dataclass(slots=True)
class Overlap:
    """Speech during an answer, undecided. Positions in samples at the model's rate; times in seconds.

    ``decide_at``: when silence of the recogniser counts as "not an acknowledgement".
    """

    response_id: str
    onset: int
    onset_at: float
    confirmed_at: float
    decide_at: float
    partial: str | None = None
    pending_reported: bool = False


def is_acknowledgement(text: str, config: SessionConfig) -> bool:
    """Whether ``text`` consists of acknowledgement words of the session's language, and of nothing else."""
    words = [match.group(0).casefold() for match in _WORD.finditer(text)]
    if not words or len(words) > 4:
        return False
    known = acknowledgement_words(config.language) if config.acknowledgements is None else config.acknowledgements
    joined = " ".join(words)
    return joined in known or all(word in known for word in words)


def loud_enough(pcm: bytes, config: SessionConfig, frame_samples: int) -> bool:
    """Whether some frame of ``pcm`` (PCM16) reaches ``overlap_silence_rms`` of full scale."""
    least = (config.overlap_silence_rms * 32_768.0) ** 2 * frame_samples
    samples = array("h", pcm)
    for start in range(0, len(samples), frame_samples):
        frame = samples[start : start + frame_samples]
        if sum(map(mul, frame, frame)) >= least * len(frame) / frame_samples:
            return True
    return False


def decide_overlap(
    config: SessionConfig, *, partial: str | None, speech_ms: int, ended: bool, waited: bool, can_interrupt: bool
) -> Verdict:
    """Judge speech of ``speech_ms`` so far. ``ended``: it is over; ``waited``: the time to wait for a partial is over."""
    if not can_interrupt:
        return Verdict("listen", "barge_in_unsupported")
    if config.effective_overlap_policy == "listen_only":
        return Verdict("listen", "listen_only")
    acknowledged = partial is not None and is_acknowledgement(partial, config)
    if acknowledged:
        if ended:
            if speech_ms <= config.overlap_short_ack_ms:
                return Verdict("drop", "acknowledgement")
            return Verdict("barge_in", "longer_than_acknowledgement")
        if speech_ms >= config.overlap_barge_in_ms:
            return Verdict("barge_in", "longer_than_acknowledgement")
        return Verdict("pending", "acknowledgement")
    if partial and waited:
        return Verdict("barge_in", "speech")
    if ended or waited:
        return Verdict("barge_in", "speech")
    return Verdict("pending", "confirming")
