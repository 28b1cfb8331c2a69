"""Rules of imports and signatures that no layer table says, as functions from a tree of files to the breaches in it.

Each takes the modules to judge, so that fixtures can show that each can fail.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from tests.arch.tree import BARE_PACKAGES, imports_of, layer_rows, within

# Libraries that are slow to load or may be absent. Each is known to one file only, which loads it when first used.
HEAVY = frozenset({"aiortc", "hibari", "hibari_tts", "onnxruntime", "ray", "sounddevice", "torch", "vllm", "xllamacpp"})

# The state machine takes time and ids as arguments and does no input or output: it needs none of these. From the
# plugin contract it may take value types, never what has hooks to call.
BANNED_IN_CORE = frozenset(
    {
        *("asyncio", "concurrent", "contextvars", "datetime", "logging", "multiprocessing", "os", "random"),
        *("queue", "secrets", "select", "selectors", "signal", "socket", "subprocess", "tempfile", "threading"),
        *("time", "uuid", "duologue.clock", "duologue.log", "duologue.engine.duplex.plugin", "duologue.models"),
    }
)
PLUGIN = "duologue.engine.duplex.plugin"
CORE = "duologue.engine.duplex.core"

# Documented to take dicts, which become typed items at entry.
PAYLOADS = frozenset(
    {
        ("duologue.engine.duplex.session.runner", "emit"),
        ("duologue.engine.duplex.session.payload", "item_from"),
    }
)
MAPPING_OF_ANYTHING = re.compile(r"\b(dict|Mapping|MutableMapping)\[str, (object|Any)\]")
NO_PRODUCT = ("duologue.sim", "duologue.bench", "duologue.demo")

# The interpreter (3.11) takes a call with more values on its stack than this through a dictionary.
STACK_OF_A_CALL = 30

# Names that say nothing about what a module holds.
MODULE_NAMES_BANNED = frozenset({"utils", "util", "helpers", "helper", "common", "misc"})


def lowest_row() -> tuple[str, ...]:
    """The packages of row 0."""
    return layer_rows()[0]


def turn_based_row() -> tuple[str, ...]:
    """The packages of the turn-based engine, row 3."""
    return layer_rows()[3]


def core_breaches(modules: Mapping[str, Path]) -> list[str]:
    """Imports in the core that would let it see time, chance, the outside or a plugin, lazy ones included."""
    values = {f"{PLUGIN}.{name}" for name in struct_names(modules[PLUGIN])} if PLUGIN in modules else set()
    return [
        f"{path}:{found.line} imports {found.target}"
        for name, path in modules.items()
        if within(name, CORE)
        for found in imports_of(path, name)
        if any(within(found.target, banned) for banned in BANNED_IN_CORE) and found.target not in values
    ]


def call_breaches(modules: Mapping[str, Path]) -> list[str]:
    """Calls in the engine with so many named arguments that each costs what twenty others do (a name counts twice)."""
    return [
        f"{path}:{node.lineno} names too many arguments: give the first ones by position"
        for name, path in modules.items()
        if within(name, "duologue.engine")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and len(node.args) + 2 * len(node.keywords) > STACK_OF_A_CALL
    ]


def struct_names(path: Path) -> list[str]:
    """The classes of a file that are plain values: direct children of `msgspec.Struct`."""
    return [
        node.name
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "msgspec.Struct" for base in node.bases)
    ]


def leaf_breaches(modules: Mapping[str, Path], leaf: str) -> list[str]:
    """Imports of `leaf` (a module or package) from the package itself that are neither its own nor of row 0."""
    return [
        f"{path}:{found.line} imports {found.target}"
        for name, path in modules.items()
        if within(name, leaf)
        for found in imports_of(path, name)
        if within(found.target, "duologue") and not _is_below(found.target, leaf)
    ]


def _is_below(target: str, leaf: str) -> bool:
    if target in BARE_PACKAGES or target == "duologue.__version__":
        return True
    return within(target, leaf) or any(within(target, package) for package in lowest_row())


def turn_based_breaches(modules: Mapping[str, Path]) -> list[str]:
    """Imports of the duplex engine from the turn-based one, which must work without it."""
    return [
        f"{path}:{found.line} imports {found.target}"
        for name, path in modules.items()
        if any(within(name, package) for package in turn_based_row())
        for found in imports_of(path, name)
        if within(found.target, "duologue.engine.duplex") or within(found.target, "duologue.engine.duplex_orchestrator")
    ]


def heavy_breaches(modules: Mapping[str, Path]) -> list[str]:
    """Heavy libraries known to more than one file, or loaded as soon as that file is imported."""
    users: dict[str, set[Path]] = defaultdict(set)
    breaches = []
    for name, path in modules.items():
        for found in imports_of(path, name):
            library = found.target.partition(".")[0]
            if library not in HEAVY or found.typing_only:
                continue
            users[library].add(path)
            if not found.lazy:
                breaches.append(f"{path}:{found.line} imports {library} when it is itself imported")
    breaches += [
        f"{library} is imported by {len(paths)} files: {', '.join(sorted(map(str, paths)))}"
        for library, paths in users.items()
        if len(paths) > 1
    ]
    return breaches


def name_breaches(modules: Mapping[str, Path]) -> list[str]:
    """Modules named after nothing that they hold."""
    return [
        f"{path} is named {part}"
        for name, path in modules.items()
        for part in [name.rpartition(".")[2]]
        if part in MODULE_NAMES_BANNED or part.startswith("base_")
    ]


def signature_breaches(modules: Mapping[str, Path]) -> list[str]:
    """Public functions that take or return a mapping of anything: what crosses a boundary has a type of its own."""
    return [
        f"{path}:{node.lineno} {node.name} has {part} in its signature"
        for name, path in modules.items()
        if not any(within(name, package) for package in NO_PRODUCT)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_")
        if (name, node.name) not in PAYLOADS
        for part in _annotations(node)
        if MAPPING_OF_ANYTHING.search(part)
    ]


def _annotations(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return [ast.unparse(part) for part in (*(one.annotation for one in given), node.returns) if part is not None]
