"""Deterministic models without weights, in both families, for tests and the simulator."""

from .pipeline import ScriptedPipeline, ephemeral_pipeline, resident_pipeline
from .plugin import ScriptedPlugin, ScriptedState
from .resident import ResidentPlugin
from .script import Script, ScriptedCall, ScriptedFault
from .sound import silence, tone

__all__ = [
    "ResidentPlugin",
    "Script",
    "ScriptedCall",
    "ScriptedFault",
    "ScriptedPipeline",
    "ScriptedPlugin",
    "ScriptedState",
    "ephemeral_pipeline",
    "resident_pipeline",
    "silence",
    "tone",
]
