"""Resident memory, read on the training thread."""

from __future__ import annotations

import os

from probe.agent.steps.rss import EVERY_NS, Rss


def test_it_is_what_the_kernel_says() -> None:
    resident = Rss()
    with open("/proc/self/status") as status:
        (line,) = (line for line in status if line.startswith("VmRSS"))
    assert abs(resident.read(EVERY_NS) - int(line.split()[1]) * 1024) < 8 << 20
    resident.close()


def test_it_is_not_read_again_at_once() -> None:
    resident = Rss()
    assert resident.read(EVERY_NS) > 0 == resident.read(EVERY_NS + 1)
    assert resident.read(2 * EVERY_NS) > 0
    resident.close()
    assert resident.read(9 * EVERY_NS) == 0


def test_a_descriptor_that_the_job_has_taken_over_is_left_alone() -> None:
    resident = Rss()
    number = resident.fd
    reading, writing = os.pipe()
    os.dup2(reading, number)
    assert resident.read(EVERY_NS) == 0
    resident.close()
    os.fstat(number)
    for fd in (number, reading, writing):
        os.close(fd)


def test_a_child_does_not_inherit_it() -> None:
    resident = Rss()
    assert not os.get_inheritable(resident.fd)
    resident.close()
