"""Flame graphs of a real job: of its last profile, by steps, of all threads, and against a file written before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from target import Probe, Start, Target

pytest.importorskip("torch")

SUM = "SELECT SUM(seconds) AS s FROM python.profile WHERE is_main"


@pytest.fixture(scope="module")
def job(start_once: Start, probe: Probe, tmp_path_factory: pytest.TempPathFactory) -> Target:
    spent = tmp_path_factory.mktemp("profiled") / "spent"
    spent.write_bytes(bytes(16))
    target = start_once("profiled.py", str(spent))
    probe("attach", target.pid)
    return target


def data(page: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(page.read_text("utf-8").partition('id="profile">')[2].partition("</script>")[0])
    return found


def test_a_page_shows_the_last_profile_and_a_second_one_the_difference(
    job: Target, probe: Probe, tmp_path: Path
) -> None:
    def number(sql: str) -> float:
        (row,) = json.loads(probe(job.pid, "query", "--open", "--format", "json", sql).stdout)
        return float(row["s"])

    first, second, both = tmp_path / "first.html", tmp_path / "second.html", tmp_path / "both.speedscope.json"
    refused = probe(job.pid, "flame", "-o", first, status=8)
    assert refused.stderr.endswith(f"[no-profile] There is no profile to show. Run: probe {job.pid} profile\n")
    assert not first.exists()
    probe(job.pid, "profile", "--seconds", "0.7")
    told, seconds = probe(job.pid, "flame", "-o", first).stderr, number(SUM)
    assert told.startswith(f"Wrote {first}: rank 0, ") and f" stacks, {seconds:.1f} s in " in told
    steps = number("SELECT MAX(step) - MIN(step) AS s FROM python.profile")
    probe(job.pid, "profile", "--seconds", "0.7")
    probe(job.pid, "flame", "-o", second, "--against", first)
    shown, before = data(second), data(first)
    assert [sum(side["seconds"]) for side in (before["sides"][0], shown["sides"][1])] == pytest.approx([seconds] * 2)
    assert sum(shown["sides"][0]["seconds"]) == pytest.approx(number(SUM) - seconds)
    assert 0.6 * steps < before["sides"][0]["steps"]["0"] == shown["sides"][1]["steps"]["0"] < 1.5 * steps
    assert {"much (profiled.py)", "spin (profiled.py)"} <= set(shown["frames"]) and "sleeps (profiled.py)" not in shown[
        "frames"
    ]
    last = number("SELECT MAX(step) AS s FROM python.profile")
    probe(job.pid, "flame", "-o", both, "--steps", f"0..{last:.0f}", "--all-threads")
    profiles = {each["name"]: each["endValue"] for each in json.loads(both.read_text())["profiles"]}
    for name in ("MainThread", "sleeper"):
        of_thread = number(SUM.replace("is_main", f"thread_name = '{name}'"))
        assert profiles[f"rank 0, {name}"] == pytest.approx(of_thread) and of_thread > 1


def test_what_cannot_be_written_or_compared_is_refused_before_the_job_is_asked(
    job: Target, probe: Probe, tmp_path: Path
) -> None:
    before = tmp_path / "before.html"
    before.write_text("<html>")
    for words, says in (
        (["-o", tmp_path / "x.svg"], "no .svg"),
        (["-o", tmp_path / "none" / "x.html"], "Cannot write"),
        (["-o", tmp_path / "x.html", "--against", before], "not written by probe flame"),
        (["-o", tmp_path / "x.html", "--against", tmp_path / "y.html"], "No such file"),
        (["-o", tmp_path / "x.html", "--steps", "7"], "range of steps"),
    ):
        error = probe(job.pid, "flame", *words, status=2).stderr
        assert says in error and error.count("\n") == 1
    assert [each.name for each in tmp_path.iterdir()] == ["before.html"]
