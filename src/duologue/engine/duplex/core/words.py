"""Acknowledgement words per language: what a listener says without taking the turn. Data; sessions may override it."""

from __future__ import annotations

from collections.abc import Mapping

_WORDS: Mapping[str, frozenset[str]] = {
    "en": frozenset(
        {
            "mm-hm",
            "mhm",
            "mm",
            "hmm",
            "hm",
            "uh-huh",
            "uhuh",
            "mm-hmm",
            "mmhmm",
            "yeah",
            "yep",
            "yes",
            "yup",
            "okay",
            "ok",
        }
        | {"right", "sure", "oh", "ah", "wow", "really", "alright", "cool", "nice", "great", "good", "exactly", "true"}
        | {"indeed", "i see", "got it", "go on", "of course", "all right", "uh huh", "mm hm", "mm hmm", "oh okay"}
    ),
    "de": frozenset({"mhm", "hm", "ja", "jaja", "genau", "ja genau", "okay", "ok", "gut", "ach so", "aha", "stimmt"}),
    "fr": frozenset({"mm", "oui", "ouais", "d'accord", "ok", "okay", "ah", "ah bon", "voilà", "bien sûr"}),
    "es": frozenset({"mm", "sí", "si", "vale", "claro", "ajá", "ok", "okay", "ya", "bueno", "exacto"}),
    "it": frozenset({"mm", "sì", "si", "certo", "ok", "okay", "esatto", "va bene", "ah"}),
    "pt": frozenset({"mm", "sim", "claro", "ok", "okay", "certo", "isso", "aham"}),
    "zh": frozenset({"嗯", "嗯嗯", "好", "好的", "对", "是", "是的", "哦", "行"}),
    "ja": frozenset({"はい", "うん", "ええ", "そう", "そうですね", "なるほど"}),
    "ko": frozenset({"네", "응", "예", "그래", "맞아"}),
}
_ALL = frozenset().union(*_WORDS.values())


def acknowledgement_words(language: str | None) -> frozenset[str]:
    """The words of ``language`` (a BCP 47 tag); without one, those of every language that is listed."""
    if language is None:
        return _ALL
    return _WORDS.get(language.split("-")[0].lower(), _ALL)
