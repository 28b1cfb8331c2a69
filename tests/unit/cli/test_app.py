"""The command line as a person meets it: help, exit codes, and errors in one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from duologue.cli import main
from duologue.cli.fault import CommandError, explain, require
from duologue.client import ConnectError


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["duologue", *arguments])
    with pytest.raises(SystemExit) as exit:
        main()
    return int(exit.value.code or 0)


def test_bare_prints_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch)
    captured = capsys.readouterr()
    for command in ("serve", "setup", "doctor", "talk", "demo", "version", "config"):
        assert command in captured.out + captured.err


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "version") == 0
    assert capsys.readouterr().out.startswith("duologue ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("talk",), ("--wav FILE or --mic", "example:")),
        (("talk", "--wav", "a.wav", "--mic"), ("--wav FILE or --mic",)),
        (("talk", "--wav", "/no/such.wav"), ("No such file or directory", "/no/such.wav")),
        (("serve", "/no/such.yaml"), ("/no/such.yaml", "can't be read")),
        (("serve", "--host", "0.0.0.0"), ("--host", "api_keys")),
        (("serve", "--log-level", "loud"), ("--log-level", "loud")),
        (("demo", "--models", "/no/such"), ("model files are missing from /no/such", "type: duologue setup")),
    ],
)
def test_errors_are_readable_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    words: tuple[str, ...],
) -> None:
    assert run(monkeypatch, *arguments) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("duologue: ")
    assert "Traceback" not in shown
    for word in words:
        assert word in shown


def test_a_server_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from duologue.audio import write_wav

    write_wav(tmp_path / "a.wav", bytes(3200), 16_000)
    assert run(monkeypatch, "talk", "--wav", str(tmp_path / "a.wav"), "--url", "ws://127.0.0.1:1") == 1
    assert "is the server running? Start one with: duologue serve" in capsys.readouterr().err


def test_debug_lets_the_traceback_through_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["duologue", "talk", "--wav", "/no/such.wav", "--debug"])
    with pytest.raises(FileNotFoundError):
        main()


def test_the_schema_of_configurations_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "config", "schema") == 0
    assert '"DuologueConfig"' in capsys.readouterr().out


def test_a_config_is_checked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("server:\n  port: 9000\n")
    bad.write_text("server:\n  prot: 9000\nmodle: x\n")
    assert run(monkeypatch, "config", "check", str(good)) == 0
    assert "127.0.0.1:9000" in capsys.readouterr().out
    assert run(monkeypatch, "config", "check", str(bad)) == 1
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 2 and "server.prot" in shown[0] and "modle" in shown[1]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            "{plugin: cascad}",
            "model.plugin 'cascad' is not built in and not written package.module:name: did you mean 'cascade'?",
        ),
        ("{plugin: other}", "it is one of cascade, native, scripted."),
        ("{options: {slot: 8}}", "model.options.slot is not an option of 'cascade'"),
        ("{plugin: native, options: {replicas: two}}", "model.options.replicas must be a whole number, got 'two'"),
        ("{plugin: scripted, options: {repplies: 1}}", "model.options.repplies is not an option of 'scripted'"),
        ("{plugin: 'my.model:Plugin'}", "model.plugin 'my.model:Plugin' needs a pipeline"),
    ],
)
def test_a_config_whose_model_would_not_be_served_is_not_usable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, model: str, said: str
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"model: {model}\n")
    assert run(monkeypatch, "config", "check", str(file)) == 1
    assert said in capsys.readouterr().err


def test_a_config_of_code_that_is_not_there_yet_can_be_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("model: {plugin: 'my.model:Plugin'}\npipeline: {stages: [{name: a, factory: 'my.stages:A'}]}\n")
    assert run(monkeypatch, "config", "check", str(file)) == 0


def test_setup_check_names_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(monkeypatch, "setup", "--check", "--models", str(tmp_path)) == 1
    assert "absent" in capsys.readouterr().out


def test_the_command_line_is_above_the_environment_and_the_file(tmp_path: Path) -> None:
    from duologue.cli.serve import configuration

    file = tmp_path / "c.yaml"
    file.write_text("server:\n  port: 1\n  host: 127.0.0.1\nlogging:\n  level: debug\n")
    environment = {"DUOLOGUE__SERVER__PORT": "2", "UNRELATED": "x"}
    assert configuration(file, environment).server.port == 2
    typed = configuration(file, environment, host="0.0.0.0", port=3, api_keys=("a", "b"), log_level="error")
    assert (typed.server.host, typed.server.port, typed.server.api_keys) == ("0.0.0.0", 3, ("a", "b"))
    assert typed.logging.level == "error"


def test_what_nobody_expected_is_called_our_fault() -> None:
    assert explain(ConnectError("no")) == "duologue: no"
    shown = explain(ValueError("odd"))
    assert "internal error: ValueError: odd" in shown and "--debug" in shown


def test_a_missing_library_says_what_to_install() -> None:
    with pytest.raises(CommandError, match=r"cannot be loaded .*\n  do this"):
        require("no_such_library", "do this")
