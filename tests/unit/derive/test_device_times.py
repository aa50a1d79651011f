"""Device times of all shapes of models, on a played device: whose time each kernel is."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

from on_a_device import on_a_device  # noqa: E402
from played_cuda import PlayedCuda, to_cuda  # noqa: E402
from tapped import Taps  # noqa: E402
from zoo import ZOO  # noqa: E402

from probe.streams import SAMPLED  # noqa: E402

pytestmark = pytest.mark.slow

SLACK_NS = 10_000  # of a clock that goes on by 1 ns a reading

Rows = list[dict[str, Any]]


def table(played: PlayedCuda, taps: Taps) -> Rows:
    """What is known once the device has come to what was issued."""
    played.catch_up()
    taps.device.drain()
    return taps.table()


def runs_again(name: str, played: PlayedCuda, taps: Taps) -> tuple[nn.Module, int]:
    """A model of the zoo that has run once, and when it then runs again: by now its modules are known by name."""
    model, run = ZOO[name]()
    to_cuda(model)
    run()
    taps.modules.name()
    taps.device.switch(SAMPLED)
    played.spent.clear()
    start = played.clock.now
    run()
    return model, start


@pytest.mark.parametrize("name", ZOO)
def test_every_kernel_is_the_time_of_the_module_that_issued_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # checkpointing compares devices, and a gradient of what only says that it is on one is not
    monkeypatch.setitem(torch.utils.checkpoint._allowed_determinism_checks_to_fns, "default", lambda tensor: None)
    with on_a_device() as (played, taps):
        model, start = runs_again(name, played, taps)
        found, expected = defaultdict[Any, int](int), defaultdict[Any, int](int)
        names = {serial: module["name"] for serial, module in taps.raw().log.modules.items()}
        for row in table(played, taps):
            if row["start_ns"] >= start:
                assert row["device"] == "cuda:0"
                found[row["module"], row["stage"]] += round(row["duration"] * 1e9)
        for (module, stage), ns in played.spent.items():
            expected[names[taps.serial(module)], stage] += ns
        both = {key: (expected[key], found[key]) for key in {*expected, *found}}
        assert not {key: pair for key, pair in both.items() if abs(pair[0] - pair[1]) > SLACK_NS} and model
