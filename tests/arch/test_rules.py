"""The rules of imports and signatures beyond the layer table hold, and each of them can fail."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.arch import rules
from tests.arch.tree import REPOSITORY, SOURCE, module_files

Rule = Callable[[Mapping[str, Path]], list[str]]


def client_breaches(modules: Mapping[str, Path]) -> list[str]:
    return rules.leaf_breaches(modules, "duologue.client")


def loop_breaches(modules: Mapping[str, Path]) -> list[str]:
    return rules.leaf_breaches(modules, "duologue.sim.loop")


RULES: dict[str, Rule] = {
    "core": rules.core_breaches,
    "client": client_breaches,
    "loop": loop_breaches,
    "turn-based": rules.turn_based_breaches,
    "heavy": rules.heavy_breaches,
    "names": rules.name_breaches,
    "calls": rules.call_breaches,
    "signatures": rules.signature_breaches,
}


@pytest.mark.parametrize("rule", RULES)
def test_the_package_keeps_the_rule(rule: str) -> None:
    assert RULES[rule](module_files()) == []


# Per rule: a module, a text for it, and whether that breaks the rule.
CASES: list[tuple[str, str, str, bool]] = [
    ("calls", "duologue.engine.duplex.core.state", f"f({', '.join(f'a{n}=1' for n in range(16))})", True),
    ("calls", "duologue.engine.duplex.core.state", f"f({', '.join(f'a{n}=1' for n in range(15))})", False),
    ("calls", "duologue.engine.duplex.core.state", f"f(1, {', '.join(f'a{n}=1' for n in range(15))})", True),
    ("calls", "duologue.server.state", f"f({', '.join(f'a{n}=1' for n in range(16))})", False),
    ("core", "duologue.engine.duplex.core.state", "import time", True),
    ("core", "duologue.engine.duplex.core.state", "from os import path", True),
    ("core", "duologue.engine.duplex.core.state", "from duologue import clock", True),
    ("core", "duologue.engine.duplex.core.state", "from ..plugin import DuplexModelPlugin", True),
    ("core", "duologue.engine.duplex.core.state", "def f():\n    import asyncio.tasks", True),
    ("core", "duologue.engine.duplex.core.state", "import importlib\nimportlib.import_module('random')", True),
    ("core", "duologue.engine.duplex.core.state", "import math\nfrom ..contracts import DuplexFence", False),
    ("core", "duologue.engine.duplex.session.runner", "import asyncio", False),
    ("client", "duologue.client.session", "from duologue.server import app", True),
    ("client", "duologue.client.session", "from duologue.config import SessionConfig", True),
    ("client", "duologue.client.session", "from duologue.wire.events import Event\nimport asyncio", False),
    ("client", "duologue.client.session", "from duologue.client.connection import Connection", False),
    ("loop", "duologue.sim.loop", "from duologue.sim.network import Link", True),
    ("loop", "duologue.sim.loop", "from duologue.engine.orchestrator import Orchestrator", True),
    ("loop", "duologue.sim.loop", "import asyncio\nfrom duologue.clock import Clock", False),
    ("turn-based", "duologue.engine.orchestrator", "from duologue.engine.duplex import contracts", True),
    ("turn-based", "duologue.engine.stages.inproc", "from ..duplex.contracts import DuplexFence", True),
    ("turn-based", "duologue.engine.orchestrator", "from duologue.engine import duplex_orchestrator", True),
    ("turn-based", "duologue.engine.orchestrator", "from duologue.engine.messages import Message", False),
    ("heavy", "duologue.models.voice", "import onnxruntime", True),
    ("heavy", "duologue.models.voice", "try:\n    import torch.cuda\nexcept ImportError:\n    pass", True),
    ("heavy", "duologue.models.voice", "def load():\n    import onnxruntime", False),
    (
        "heavy",
        "duologue.models.voice",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import ray",
        False,
    ),
    ("names", "duologue.server.utils", "", True),
    ("names", "duologue.server.base_connection", "", True),
    ("names", "duologue.server.connection", "", False),
    ("signatures", "duologue.server.journal", "def f(a: dict[str, object]) -> None: ...", True),
    (
        "signatures",
        "duologue.server.journal",
        "class C:\n    async def f(self, *, a: Mapping[str, Any] | None): ...",
        True,
    ),
    ("signatures", "duologue.server.journal", "def f() -> list[dict[str, Any]]: ...", True),
    ("signatures", "duologue.server.journal", "def _f(a: dict[str, object]) -> dict[str, int]: ...", False),
    ("signatures", "duologue.server.journal", "def f(a: dict[str, bytes]) -> dict[str, int]: ...", False),
    ("signatures", "duologue.engine.duplex.session.runner", "def emit(self, payload: dict[str, object]): ...", False),
]


@pytest.mark.parametrize(("rule", "module", "text", "breaks"), CASES)
def test_the_rule_tells_good_from_bad(rule: str, module: str, text: str, breaks: bool, tmp_path: Path) -> None:
    path = tmp_path / Path(*module.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert bool(RULES[rule](module_files(tmp_path))) is breaks


def test_a_heavy_library_known_to_two_files_is_found(tmp_path: Path) -> None:
    for name in ("one", "two"):
        path = tmp_path / "duologue" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text("def load():\n    import xllamacpp\n")
    (breach,) = rules.heavy_breaches(module_files(tmp_path))
    assert "2 files" in breach


def test_the_core_may_take_values_from_the_plugin_contract_but_nothing_with_hooks(tmp_path: Path) -> None:
    duplex = tmp_path / "duologue" / "engine" / "duplex"
    (duplex / "core").mkdir(parents=True)
    (duplex / "plugin.py").write_text("class Entry(msgspec.Struct): ...\nclass Plugin(abc.ABC): ...\n")
    (duplex / "core" / "state.py").write_text("from duologue.engine.duplex.plugin import Entry, Plugin\n")
    (breach,) = rules.core_breaches(module_files(tmp_path))
    assert breach.endswith("imports duologue.engine.duplex.plugin.Plugin")


def loaded_by(module: str) -> set[str]:
    """The modules that a fresh interpreter holds after importing `module`."""
    program = f"import sys, {module}; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def _exists(module: str) -> bool:
    return module in module_files(SOURCE)


# What may not be loaded (below the given package) once a module is imported, whichever way the import goes.
NOT_LOADED = [
    ("duologue.engine.orchestrator", ["duologue.engine.duplex", "duologue.engine.duplex_orchestrator"]),
    ("duologue.engine.duplex.core", ["duologue.clock", "duologue.log", "duologue.models"]),
    ("duologue.engine.duplex_orchestrator", ["duologue.models", "duologue.server"]),
    ("duologue.client", ["duologue.engine", "duologue.server", "duologue.config", "duologue.models"]),
    ("duologue.cli", sorted(rules.HEAVY)),
    ("duologue.server", sorted(rules.HEAVY)),
    ("duologue.models", sorted(rules.HEAVY)),
]


@pytest.mark.parametrize(("module", "barred"), [case for case in NOT_LOADED if _exists(case[0])])
def test_importing_a_module_does_not_load(module: str, barred: list[str]) -> None:
    loaded = loaded_by(module)
    assert module in loaded
    for package in barred:
        assert package not in loaded and not any(name.startswith(f"{package}.") for name in loaded)


def test_the_loaded_modules_are_really_seen() -> None:
    assert {"json", "json.decoder"} <= loaded_by("json")
