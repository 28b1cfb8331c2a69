"""The configuration file and the environment: what they set, and what people are told when they are wrong."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from duologue.config.loader import ConfigError, load_config
from duologue.config.service import DuologueConfig
from duologue.config.session import SemanticVad, ServerVad

FULL = """
server:
  host: 0.0.0.0
  port: 9000
  api_keys: [secret-one]
  limits: {sessions_per_key: 2}
sessions: {max_sessions: 8, idle_ttl_s: null}
session:
  turn_detection: {type: server_vad, silence_duration_ms: 700}
  voice: alto
model: {plugin: cascade, options: {llm_url: "http://127.0.0.1:8000/v1"}}
pipeline:
  async_chunk: true
  stages:
    - {name: think, factory: "pkg.think:Stage", replicas: 2, sampling: {max_tokens: 64}, model: {max_model_len: 2048}}
    - {name: speak, factory: "pkg.speak:Stage", backend: inproc, options: {rate: 24000}}
  edges:
    - {source: think, target: speak, processor: "pkg.edges:speak", prewarm: true}
logging: {level: debug, json: true}
"""


def load(tmp_path: Path, text: str, environment: dict[str, str] | None = None) -> DuologueConfig:
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return load_config(path, environment)


def test_groups_of_replicas_must_fit_the_stages_of_the_pipeline(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "sessions: {replica_policy: least_sessions, max_sessions_per_replica: 1, replica_groups: [[0, 0]]}\n"
        "pipeline: {stages: [{name: a, factory: 'p:A'}, {name: b, factory: 'p:B', replicas: 2}]}\n"
    )
    with pytest.raises(ConfigError, match="replica 1 of stage 1 is in no group"):
        load_config(file)


def test_without_a_file_the_defaults_hold() -> None:
    config = load_config()
    assert (config.server.host, config.server.port, config.model.plugin) == ("127.0.0.1", 8765, "cascade")
    assert config.sessions.max_sessions == 4
    assert isinstance(config.session.turn_detection, SemanticVad)
    assert config.pipeline is None
    assert config == DuologueConfig()


def test_a_full_file_arrives_typed(tmp_path: Path) -> None:
    config = load(tmp_path, FULL)
    assert config.server.api_keys == ("secret-one",)
    assert config.server.limits.sessions_per_key == 2
    assert config.sessions.idle_ttl_s is None
    assert config.session.turn_detection == ServerVad(silence_duration_ms=700)
    assert config.model.options == {"llm_url": "http://127.0.0.1:8000/v1"}
    assert config.pipeline is not None
    think, speak = config.pipeline.stages
    assert (think.replicas, think.sampling.max_tokens, think.model.max_model_len, think.backend) == (
        2,
        64,
        2048,
        "process",
    )
    assert (speak.backend, speak.options, config.pipeline.stage_id("speak")) == ("inproc", {"rate": 24000}, 1)
    assert config.pipeline.edges[0].prewarm


@pytest.mark.parametrize("text", ["", "# nothing\n", "server:\nmodel:\n", "server: {}\n"])
def test_empty_groups_mean_the_defaults(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, text) == DuologueConfig()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("server: {port: abc}", "server.port: expected int, got 'abc'"),
        ("server: {port: 70000}", "server.port must be between 0 and 65535, got 70000"),
        ("server: {host: 0.0.0.0}", "server.host '0.0.0.0' can be reached from other machines"),
        ("server: {host: 192.168.1.5}", "api_keys must hold at least one key"),
        ("server: {api_keys: ['']}", "server.api_keys must not hold an empty key"),
        ("server: {tls_key: k.pem}", "server.tls_certificate is missing"),
        ("server: {limits: {max_event_bytes: 0}}", "server.limits.max_event_bytes must be greater than 0, got 0"),
        (
            "server: {limits: {max_frame_bytes: 10}}",
            "server.limits.max_frame_bytes must be greater than max_event_bytes",
        ),
        ("sessions: {max_sessions: 0}", "sessions.max_sessions must be greater than 0, got 0"),
        (
            "sessions: {replica_policy: best}",
            "sessions.replica_policy must be one of legacy, least_sessions, got 'best'",
        ),
        ("session: {turn_detection: {type: magic}}", "type must be one of server_vad, semantic_vad, got 'magic'"),
        ("session: {turn_detection: {type: server_vad, threshold: 7}}", "threshold must be between 0.15 and 1, got 7"),
        ("session: {speed: 9}", "speed must be between 0.25 and 4, got 9"),
        ("model: {plugin: 'a b'}", "model.plugin must be a name like 'cascade'"),
        ("logging: {level: loud}", "logging.level must be one of debug, info, warning, error, got 'loud'"),
        ("pipeline: {stages: []}", "pipeline.stages must name at least one stage"),
        (
            "pipeline: {stages: [{name: a, factory: pkg.thing}]}",
            "factory must be written package.module:name, got 'pkg",
        ),
        ("pipeline: {stages: [{name: a, factory: 'p:S', replicas: 0}]}", "stages[0].replicas must be between 1 and 64"),
        (
            "pipeline: {stages: [{name: a, factory: 'p:S', backend: gpu}]}",
            "backend must be one of inproc, process",
        ),
        ("pipeline: {stages: [{name: a, factory: 'p:S', heartbeat_s: 6}]}", "at least twice heartbeat_s (6), got 10"),
        ("pipeline: {stages: [{name: a, factory: 'p:S'}, {name: a, factory: 'p:S'}]}", "'a' is there twice"),
        (
            "pipeline: {stages: [{name: a, factory: 'p:S'}], edges: [{source: a, target: b}]}",
            "target must be one of a, got 'b'",
        ),
        (
            "pipeline: {stages: [{name: a, factory: 'p:S'}, {name: b, factory: 'p:S'}], edges: [{source: b, target: a}]}",
            "'b' must stand before 'a'",
        ),
        (
            "model: {options: {a: 1, replies: [yes]}}",
            "model.options.replies: expected bool | int | float | str | null, got [True]",
        ),
        (
            "pipeline: {stages: [{name: a, factory: 'p:S', environment: {A: x, THREADS: 2}}]}",
            "pipeline.stages[0].environment.THREADS: expected str, got 2",
        ),
        (
            f"sessions: {{max_turn_ms: 1{'0' * 400}}}",
            "sessions.max_turn_ms must be at most 9007199254740992, got a number",
        ),
        ("sessions: {max_items_per_session: 9007199254740993}", "sessions.max_items_per_session must be at most"),
        (f"session: {{overlap_decide_ms: 1{'0' * 400}}}", "session.overlap_decide_ms must be at most 9007199254740992"),
        ("session: {overlap_decide_ms: -1}", "overlap_decide_ms must be between 0 and 60000, got -1"),
        *(
            (f"{section}: {inner.replace('X', value)}", f"must be a number of at most 9007199254740992, got {shown}")
            for section, inner in (
                ("sessions", "{control_timeout_s: X}"),
                ("server", "{limits: {ping_interval_s: X}}"),
                ("server", "{turns: {request_timeout_s: X}}"),
                ("model", "{options: {a: X}}"),
            )
            for value, shown in ((".inf", "inf"), ("1.0e+300", "1e+300"))
        ),
        ("model: {options: {a: .nan}}", "model.options.a must be a number of at most 9007199254740992, got nan"),
        ("sessions: {disconnect_grace_s: .nan}", "sessions.disconnect_grace_s must not be negative, got nan"),
        ("sessions: {resume_replay_ttl_s: -1}", "sessions.resume_replay_ttl_s must not be negative, got -1.0"),
        ("sessions: {resume_replay_ttl_s: .nan}", "sessions.resume_replay_ttl_s must not be negative, got nan"),
        (
            "sessions: {resume_replay_max_bytes_per_session: -1}",
            "sessions.resume_replay_max_bytes_per_session must not be negative, got -1",
        ),
        ("- a list", "must hold keys and values, got a list"),
        ("server: [1", "not valid YAML in line 1"),
        ("server: {host: 2026-13-45}", "a value looks like a number or a date and is none"),
        ("server: {port: 0x_}", "a value looks like a number or a date and is none"),
        (f"server: {{port: {'9' * 5_000}}}", "a value looks like a number or a date and is none"),
        ("server: &all [*all]", "nested too deeply, or one holds itself"),
        ("[" * 5_000, "nested too deeply, or one holds itself"),
    ],
)
def test_what_is_wrong_is_named_with_its_value_and_what_is_allowed(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert expected in str(caught.value)
    assert "config.yaml" in str(caught.value)


def test_every_unknown_key_is_reported_at_once_with_the_closest_known(tmp_path: Path) -> None:
    text = """
    server: {prot: 1, limits: {sessions_per_kee: 1}}
    modell: {}
    session: {turn_detection: {type: server_vad, silence_ms: 3}}
    pipeline: {stages: [{name: a, factory: 'p:S', zzz: 2}]}
    """
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert caught.value.problems[:4] == (
        "server.prot is not a known key: did you mean 'port'?",
        "server.limits.sessions_per_kee is not a known key: did you mean 'sessions_per_key'?",
        "modell is not a known key: did you mean 'model'?",
        "session.turn_detection.silence_ms is not a known key: did you mean 'silence_duration_ms'?",
    )
    assert caught.value.problems[4].startswith("pipeline.stages[0].zzz is not a known key: allowed are backend,")


def test_wrong_values_are_reported_beside_unknown_keys_one_for_each_section(tmp_path: Path) -> None:
    text = """
    server: {prot: 1, host: 0.0.0.0}
    sessions: {max_sessions: -3, reaper_interval_s: often}
    session: {speed: 9}
    logging: {level: loud}
    """
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert caught.value.problems == (
        "server.prot is not a known key: did you mean 'port'?",
        "sessions.reaper_interval_s: expected float, got 'often'",
        "logging.level must be one of debug, info, warning, error, got 'loud'",
        "session: speed must be between 0.25 and 4, got 9.",
    )


def test_several_wrong_values_are_reported_at_once_but_a_wrong_variable_by_itself(tmp_path: Path) -> None:
    text = "server: {port: abc}\nlogging: {level: loud}"
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert [problem.split(" ")[0] for problem in caught.value.problems] == ["server.port:", "logging.level"]
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, {"DUOLOGUE__SERVER__PORT": "many"})
    assert caught.value.origin == "DUOLOGUE__SERVER__PORT"
    assert caught.value.problems == ("server.port: expected int, got 'many'",)


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    environment = {
        "DUOLOGUE__SERVER__PORT": "9001",
        "DUOLOGUE__SERVER__API_KEYS": "one, 2",
        "DUOLOGUE__SERVER__ALLOWED_ORIGINS": "[https://a.example]",
        "DUOLOGUE__SESSIONS__IDLE_TTL_S": "null",
        "DUOLOGUE__SESSION__VOICE": "123",
        "DUOLOGUE__MODEL__OPTIONS__LLM_URL": "http://x",
        "DUOLOGUE__MODEL__OPTIONS__SLOTS": "3",
        "DUOLOGUE_OTHER": "ignored",
        "PATH": "/bin",
    }
    config = load(tmp_path, "server: {port: 9000}\nsession: {voice: alto}", environment)
    assert config.server.port == 9001
    assert config.server.api_keys == ("one", "2")
    assert config.server.allowed_origins == ("https://a.example",)
    assert config.sessions.idle_ttl_s is None
    assert config.session.voice == "123"
    assert config.model.options == {"llm_url": "http://x", "slots": 3}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("DUOLOGUE__SERVER__PROT", "1", "server.prot is not a known key: did you mean 'port'?"),
        ("DUOLOGUE__SERVER__PORT", "abc", "server.port: expected int, got 'abc'"),
        ("DUOLOGUE__SERVER__PORT", "[1", "the value is not valid YAML"),
        ("DUOLOGUE__SERVER__HOST", "2026-13-45", "put it in quotes if it is text"),
        ("DUOLOGUE__SERVER__API_KEYS", "0x_", "put it in quotes if it is text"),
        ("DUOLOGUE__SERVER__PORT", "[" * 5_000, "the value is not valid YAML"),
        ("DUOLOGUE__LOGGING__LEVEL", "loud", "logging.level must be one of"),
    ],
)
def test_a_wrong_variable_is_named(name: str, value: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, {name: value})
    assert str(caught.value).startswith(f"{name}: ")
    assert expected in str(caught.value)


def test_a_variable_below_a_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"server\.port is not a group of keys"):
        load(tmp_path, "server: {port: 1}", {"DUOLOGUE__SERVER__PORT__X": "1"})


def test_keys_are_never_shown(tmp_path: Path) -> None:
    for text in ("server: {api_keys: [12345678]}", "server: {api_keys: hush-hush}"):
        with pytest.raises(ConfigError) as caught:
            load(tmp_path, text)
        assert "12345678" not in str(caught.value)
        assert "hush" not in str(caught.value)


def test_a_file_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        load_config(tmp_path / "missing.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(tmp_path / "binary.yaml")


def test_what_was_loaded_can_be_written_and_loaded_again(tmp_path: Path) -> None:
    config = load(tmp_path, FULL)
    again = load(tmp_path, yaml.safe_dump(msgspec.to_builtins(config)))
    assert again == config


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=5,
)
names = st.sampled_from(["server", "port", "sessions", "session", "turn_detection", "pipeline", "stages", "type", "x"])


@given(data=st.dictionaries(names, st.dictionaries(names, values, max_size=3) | values, max_size=3))
def test_whatever_stands_in_a_file_is_a_configuration_or_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, data: dict[str, object]
) -> None:
    path = tmp_path_factory.mktemp("any") / "config.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    try:
        assert isinstance(load_config(path), DuologueConfig)
    except ConfigError as error:
        assert error.problems
