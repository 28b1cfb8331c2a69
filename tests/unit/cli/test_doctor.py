"""Each finding of the doctor."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from duologue.cli import doctor
from duologue.cli.doctor import Finding
from duologue.setup import WEIGHTS, Missing


@pytest.mark.parametrize(
    ("version", "bounds", "good"),
    [
        ("1.2.3", "", True),
        ("1.2.3", "==1.2.3", True),
        ("1.2.3", "==1.2.4", False),
        ("1.2", "==1.2.0", True),
        ("2.4.6", "<3,>=2.2", True),
        ("3.0", "<3,>=2.2", False),
        ("2.1", "<3,>=2.2", False),
        ("2026.10.11549", "==2026.10.11549", True),
        ("1.10", ">1.9", True),
        ("1.9", "!=1.9", False),
        ("1.4.9", "~=1.4.2", True),
        ("1.5.0", "~=1.4.2", False),
        ("1.0+local", "<=1.0", True),
    ],
)
def test_versions_are_compared_by_number(version: str, bounds: str, good: bool) -> None:
    assert doctor.satisfies(version, bounds) is good


def test_packages_are_judged_against_their_pins() -> None:
    versions = {"msgspec": "0.23.0", "numpy": "1.26.0"}
    requirements = ["msgspec==0.23.0", "numpy<3,>=2.2", "soxr==1.1.0", 'sounddevice>=0.5; extra == "mic"']
    findings = {finding.subject: finding for finding in doctor.judge_packages(requirements, versions.get)}
    assert set(findings) == {"msgspec", "numpy", "soxr"}
    assert findings["msgspec"].state == "ok"
    assert findings["numpy"].state == "missing" and findings["numpy"].remedy == "pip install 'numpy<3,>=2.2'"
    assert findings["soxr"].detail == "not installed"


@pytest.mark.parametrize(
    ("finding", "state"),
    [
        (doctor.judge_python((3, 11, 7)), "ok"),
        (doctor.judge_python((3, 13, 0)), "ok"),
        (doctor.judge_python((3, 10, 1)), "missing"),
        (doctor.judge_python((3, 14, 0)), "missing"),
        (doctor.judge_platform("Linux", "x86_64"), "ok"),
        (doctor.judge_platform("Darwin", "arm64"), "note"),
        (doctor.judge_platform("Windows", "AMD64"), "missing"),
        (doctor.judge_cores(2), "ok"),
        (doctor.judge_cores(1), "note"),
        (doctor.judge_memory(8_000_000_000), "ok"),
        (doctor.judge_memory(1_000_000_000), "note"),
        (doctor.judge_memory(None), "note"),
        (doctor.judge_port(8765, True), "ok"),
        (doctor.judge_port(8765, False), "note"),
        (doctor.judge_microphone(True), "ok"),
        (doctor.judge_microphone(False), "note"),
    ],
)
def test_what_counts_as_missing(finding: Finding, state: str) -> None:
    assert finding.state == state


def test_a_whole_models_folder_is_one_line_a_broken_one_names_each_file(tmp_path: Path) -> None:
    assert [finding.state for finding in doctor.judge_models(tmp_path, [])] == ["ok"]
    missing = [Missing(WEIGHTS[0], "absent"), Missing(WEIGHTS[1], "wrong checksum")]
    findings = doctor.judge_models(tmp_path, missing)
    assert [finding.subject for finding in findings] == [WEIGHTS[0].name, WEIGHTS[1].name]
    assert all(finding.remedy == "duologue setup" for finding in findings)
    assert "wrong checksum" in findings[1].detail


def test_a_port_in_use_is_noticed() -> None:
    import socket

    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        assert not doctor.port_is_free(holder.getsockname()[1])


def test_each_remedy_is_shown_once() -> None:
    shown = io.StringIO()
    twice = [Finding(subject=name, state="missing", detail="absent", remedy="duologue setup") for name in "ab"]
    doctor.show(twice, Console(file=shown, width=80))
    assert shown.getvalue().count("duologue setup") == 1
    assert "to mend what is missing" in shown.getvalue()


def test_an_empty_models_folder_makes_the_command_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.run_doctor(tmp_path, 0) == 1
    assert "duologue setup" in capsys.readouterr().out
