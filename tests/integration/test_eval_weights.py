"""Ten steps made by one eval are ten steps: the weights are those of a job that made them itself."""

from __future__ import annotations

import re

import pytest

from target import Probe, Start

STYLES = 10


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_ten_steps_by_an_eval_give_the_weights_of_ten_more_steps(start: Start, probe: Probe) -> None:
    watched = start("styles.py", "--sleep", "0.2")
    probe("attach", watched.pid)
    for done in range(STYLES):
        watched.wait_for("begin", times=done + 1)
        probe(watched.pid, "eval", "for _ in range(10): trainer.train_step()")
        watched.wait_for("final", times=done + 1)
    alone = start("styles.py")
    finals = re.findall(r"final .*", alone.wait_for("final", times=STYLES))
    assert re.findall(r"final .*", watched.output) == finals and len(set(finals)) == STYLES
