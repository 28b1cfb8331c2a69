"""The table of limits is whole: each value, metric and test exists, and no limit is missing."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from duologue.config.service import ServerLimits
from duologue.config.session import SessionConfig
from duologue.config.stage_config import DuplexSessionRuntimeConfig
from duologue.config.turns import TurnLimits
from duologue.engine.duplex.session.registry import SessionHealth
from duologue.server.engine import EngineFront, EngineHealth
from duologue.server.metrics import ACTED, CONNECTION_LIMITS, HELD, ServerMetrics
from duologue.server.models import ModelCard, ModelNames
from duologue.server.registry import ConnectionLimits, SessionHub
from duologue.sim.loop import VirtualRuntime, virtual

REPOSITORY = Path(__file__).resolve().parents[2]


def load(name: str) -> ModuleType:
    path = REPOSITORY / "scripts" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


TABLES = load("limits")
OF_STAGES = load("limits_of_stages")
LIMITS = [*TABLES.SESSION, *TABLES.CONNECTION, *TABLES.REQUESTS, *OF_STAGES.STAGES]


@virtual
async def _metrics(runtime: VirtualRuntime) -> None:
    front = EngineFront(runtime=runtime, models=[ModelCard(id="m")], health=lambda: EngineHealth(alive=True))
    hub = SessionHub(
        defaults=SessionConfig(),
        names=ModelNames(front.models()),
        entropy=runtime.entropy,
        subscribe=front.subscribe,
        unsubscribe=front.unsubscribe,
    )
    SHOWN.append(ServerMetrics().render(hub, EngineHealth(alive=True)).decode())


SHOWN: list[str] = []


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_each_limit_has_a_value_a_metric_and_a_test(limit: object) -> None:
    if not SHOWN:
        _metrics()
    number = limit.number()  # type: ignore[attr-defined]
    assert number is None or (isinstance(number, int | float) and number > 0)
    assert limit.at and limit.unit  # type: ignore[attr-defined]
    metric: str = limit.metric  # type: ignore[attr-defined]
    assert all(name.partition("{")[0].removesuffix("_total") in SHOWN[0] for name in metric.split(", ")), metric
    for name in metric.split(", "):
        what = name.partition('="')[2].rstrip('"}')
        known = {
            "duologue_held": HELD,
            "duologue_limit_acted": ACTED,
            "duologue_connection_limit_total": CONNECTION_LIMITS,
        }.get(name.partition("{")[0])
        assert known is None or what in known, name
    file, _, name = limit.test.partition("::")  # type: ignore[attr-defined]
    assert name in _tests_in(REPOSITORY / "tests" / file), limit.test  # type: ignore[attr-defined]


def _tests_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_no_number_of_the_configuration_is_missing() -> None:
    told = {limit.name for limit in LIMITS} | TABLES.EXEMPT.keys()
    missing = []
    for struct in (DuplexSessionRuntimeConfig, ServerLimits, ConnectionLimits, TurnLimits):
        for name in struct.__struct_fields__:
            value = getattr(struct(), name)
            if (value is None or isinstance(value, int | float)) and name not in told:
                missing.append(f"{struct.__name__}.{name}")
    assert [name for name in missing if not name.endswith(("replica_groups", "replica_policy"))] == []


NO_BOUND_OF_WHAT_IS_HELD = {
    "MAX_EVENT_BYTES": "the default of the setting max_event_bytes",
    "MAX_LATE_ERRORS": "so many errors may keep a terminal back; nothing is held for them",
    "MAX_DELTA_BYTES": "a longer event is told in several frames",
    "MAX_TEXT_CHARS": "as MAX_DELTA_BYTES",
    "LONGEST_MS": "a longer time of a message counts as this",
    "MOST_GAPS": "a sample of what was measured",
    "_LONGEST_REASON": "the rest of an error's text is cut",
    "MAX_LINE_BYTES": "the rest of a line of a worker's log is cut",
    "_MAX_FRAMES": "more is judged in several steps",
    "LONGEST_WAIT_S": "the range of a setting of one request, checked as all are",
    "_LONGEST_AUDIO_S": "the last ten minutes of a recording are sent to an endpoint",
    "_MOST_CALLS": "an endpoint that asks for more fails its request",
    "_LONGEST_ARGUMENTS": "as _MOST_CALLS",
}
"""Numbers with the name of a limit that the page leaves out, and why."""

SCANNED = ("engine/duplex", "engine/stages", "wire", "engine", "server", "server/turns", "metrics")
BEGINNINGS = ("MAX_", "MIN_", "MOST_", "LONGEST_")


def test_no_limit_of_engine_server_and_wire_is_missing() -> None:
    told = {limit.value.partition(":")[2] for limit in LIMITS}
    found = set()
    for folder in SCANNED:
        for path in (REPOSITORY / "src/duologue" / folder).glob("**/*.py" if folder == "engine/duplex" else "*.py"):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                targets = node.targets if isinstance(node, ast.Assign) else []
                targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
                names = {target.id for target in targets if isinstance(target, ast.Name)}
                found |= {name for name in names if name.lstrip("_").startswith(BEGINNINGS)}
    assert found - told - NO_BOUND_OF_WHAT_IS_HELD.keys() == set()
    assert NO_BOUND_OF_WHAT_IS_HELD.keys() <= found - told, "what is on the page needs no excuse"


def test_everything_that_is_shown_is_in_the_table() -> None:
    text = " ".join(f"{limit.metric} {limit.at}" for limit in LIMITS)
    assert [name for name in HELD if f'what="{name}"' not in text] == []
    assert [name for name in ACTED if f'limit="{name}"' not in text and f"`{name}`" not in text] == []
    assert {"held", "acted"} <= set(SessionHealth.__struct_fields__)


QUEUE_TYPES = {"deque", "Queue", "SimpleQueue", "LifoQueue", "PriorityQueue"}
SOURCE = REPOSITORY / "src" / "duologue"


def unbounded_queues(tree: ast.Module) -> set[str]:
    """Names of what is made as a queue that has no greatest length."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign | ast.Assign) and _makes_queue(node.value):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[-1]
            for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                found |= {part.attr} if isinstance(part, ast.Attribute) else set()
                found |= {part.id} if isinstance(part, ast.Name) else set()
    return found


def _makes_queue(value: ast.expr | None) -> bool:
    for node in ast.walk(value) if value is not None else ():
        if isinstance(node, ast.Call) and not any(word.arg in ("maxlen", "maxsize") for word in node.keywords):
            name = node.func
            called = name.attr if isinstance(name, ast.Attribute) else name.id if isinstance(name, ast.Name) else ""
            if called in QUEUE_TYPES:
                return True
            if any(isinstance(w.value, ast.Name) and w.value.id in QUEUE_TYPES for w in node.keywords):
                return True  # field(default_factory=deque)
    return False


def test_a_queue_without_a_length_is_found() -> None:
    code = (
        "a = deque()\nb: deque[int] = field(default_factory=deque)\nc = deque(maxlen=3)\nd = asyncio.Queue(maxsize=2)"
    )
    assert unbounded_queues(ast.parse(code)) == {"a", "b"}


def test_of_each_queue_it_is_told_what_bounds_it() -> None:
    """Simulator, benchmarks and demonstration are no part of what serves."""
    found = {
        f"{path.relative_to(SOURCE).as_posix()}:{name}"
        for path in SOURCE.glob("**/*.py")
        if path.relative_to(SOURCE).parts[0] not in ("sim", "bench", "demo")
        for name in unbounded_queues(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found - OF_STAGES.QUEUES.keys() == set(), "say in scripts/limits_of_stages.py what bounds these"
    assert OF_STAGES.QUEUES.keys() - found == set(), "these are gone"
    limits = {limit.name for limit in LIMITS}
    named = {reason.strip("`") for reason in OF_STAGES.QUEUES.values() if reason.startswith("`")}
    assert named <= limits
