"""Figures of a process tree, from made-up and from real processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from duologue.demo.usage import ProcessFigures, add_up, parse_ps, parse_stat, usage_of


def process(pid: int, parent: int, *, ended: bool = False) -> ProcessFigures:
    return ProcessFigures(pid=pid, parent=parent, cpu_s=1.0, rss_bytes=10, ended=ended)


def test_a_tree_is_the_process_and_all_below_it() -> None:
    known = [process(4, 3), process(1, 0), process(2, 1), process(3, 2), process(9, 8)]
    usage = add_up(2, known)
    assert (usage.cpu_s, usage.rss_bytes, sorted(usage.pids)) == (3.0, 30, [2, 3, 4])


def test_a_process_that_has_ended_is_no_longer_one() -> None:
    assert add_up(1, [process(1, 0), process(2, 1, ended=True)]).pids == (1,)


def test_a_process_that_is_gone_costs_nothing() -> None:
    usage = add_up(5, [process(1, 0)])
    assert (usage.cpu_s, usage.rss_bytes, usage.pids) == (0.0, 0, ())


def test_the_name_of_a_process_may_hold_anything() -> None:
    fields = "S 7 1 1 0 -1 4194560 100 0 0 0 250 50 30 20 20 0 4 0 12345 1000000 256 184467 0 0"
    found = parse_stat(f"42 (a (b) c) {fields}")
    ticks = os.sysconf("SC_CLK_TCK")
    assert (found.pid, found.parent, found.command) == (42, 7, "a (b) c")
    assert found.cpu_s == pytest.approx(350 / ticks)
    assert found.rss_bytes == 256 * os.sysconf("SC_PAGE_SIZE")


def test_ps_is_read_with_and_without_hours_and_days() -> None:
    text = "  1  0  100  0:01.50 Ss /sbin/launchd\n 20  1 2048 1-02:03:04 R python -m x\n"
    first, second = parse_ps(text)
    assert (first.cpu_s, first.rss_bytes) == (1.5, 102_400)
    assert (second.cpu_s, second.parent, second.command) == (93_784.0, 1, "python -m x")


def test_a_real_process_with_a_real_child() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        usage = usage_of(os.getpid())
        assert child.pid in usage.pids
        assert usage.rss_bytes > 10_000_000
        assert usage.cpu_s > 0
    finally:
        child.communicate(b"\n")
