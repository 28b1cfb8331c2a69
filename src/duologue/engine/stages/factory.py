"""Stage code and edges by name: ``package.module:name`` becomes the thing itself, or an error that says what is wrong."""

from __future__ import annotations

import importlib

from duologue.engine.stages.contract import AnyStage, AsyncStage, Stage
from duologue.engine.stages.edge import EdgeProcessor
from duologue.outputs import Options


def resolve(path: str) -> object:
    """What ``package.module:name`` names. Raises ``ValueError`` or what importing the module raises."""
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise ValueError(f"an import path is written package.module:name, got {path!r}")
    module = importlib.import_module(module_name)
    if not hasattr(module, name):
        raise ValueError(f"module {module_name!r} has no {name!r}, which {path!r} names")
    found: object = getattr(module, name)
    return found


def make_stage(factory: str, options: Options) -> AnyStage:
    """The stage that ``factory`` makes when called with ``options`` as keywords. ``TypeError`` for wrong options."""
    make = resolve(factory)
    if not callable(make):
        raise TypeError(f"the stage factory {factory!r} can't be called")
    stage = make(**options)
    if not isinstance(stage, Stage | AsyncStage):
        raise TypeError(f"the stage factory {factory!r} made a {type(stage).__name__}, which is not a stage")
    return stage


def edge_processor(path: str) -> EdgeProcessor:
    """The edge function that ``path`` names."""
    processor = resolve(path)
    if not callable(processor):
        raise TypeError(f"the edge processor {path!r} can't be called")
    return processor
