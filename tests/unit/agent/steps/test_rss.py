"""Resident memory, read on the training thread."""

from __future__ import annotations

import os

from probe.agent.steps.rss import EVERY_NS, Rss


def test_rss_equals_the_kernels_figure() -> None:
    rss = Rss()
    with open("/proc/self/status") as status:
        (line,) = (line for line in status if line.startswith("VmRSS"))
    assert abs(rss.read(EVERY_NS) - int(line.split()[1]) * 1024) < 8 << 20
    rss.close()


def test_rss_is_not_read_again_at_once() -> None:
    rss = Rss()
    assert rss.read(EVERY_NS) > 0 == rss.read(EVERY_NS + 1)
    assert rss.read(2 * EVERY_NS) > 0
    rss.close()
    assert rss.read(9 * EVERY_NS) == 0


def test_a_descriptor_that_the_job_reused_is_left_alone() -> None:
    rss = Rss()
    number = rss.fd
    reading, writing = os.pipe()
    os.dup2(reading, number)
    assert rss.read(EVERY_NS) == 0
    rss.close()
    os.fstat(number)
    for fd in (number, reading, writing):
        os.close(fd)


def test_a_child_does_not_inherit_the_descriptor() -> None:
    rss = Rss()
    assert not os.get_inheritable(rss.fd)
    rss.close()
