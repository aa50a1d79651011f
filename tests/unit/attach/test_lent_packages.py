"""The command's pyzmq is lent only to an interpreter that its compiled part was built for."""

from __future__ import annotations

import importlib.machinery
import sys
from types import SimpleNamespace

import pytest

from probe.attach import lent_packages
from probe.attach.lent_packages import Loan, lend_zmq

LINUX_311 = [".cpython-311-x86_64-linux-gnu.so", ".abi3.so", ".so"]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A pyzmq of the command's whose compiled part has that name, from a wheel of that tag."""

    def installed(compiled: str, tag: str) -> str:
        folder = tmp_path / "zmq" / "backend" / "cython"
        folder.mkdir(parents=True)
        (folder / compiled).touch()
        info = tmp_path / "pyzmq-27.0.dist-info"
        info.mkdir()
        (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nTag: {tag}-manylinux_2_28_x86_64\n")
        origin = str(tmp_path / "zmq" / "__init__.py")
        monkeypatch.setattr(lent_packages, "find_spec", lambda name: SimpleNamespace(origin=origin))
        return str(tmp_path)

    return installed


def test_pyzmq_is_lent_to_the_version_it_was_compiled_for(installed):
    site = installed("_zmq.cpython-311-x86_64-linux-gnu.so", "cp311-cp311")
    assert lend_zmq(LINUX_311, (3, 11, 7)) == Loan(path=site, refused="")


def test_pyzmq_is_refused_to_another_version_by_its_file_name(installed):
    installed("_zmq.cpython-312-x86_64-linux-gnu.so", "cp312-cp312")
    told = lend_zmq(LINUX_311, (3, 11, 7))
    assert told.path == ""
    assert "_zmq.cpython-312" in told.refused


@pytest.mark.parametrize(("version", "fits"), [((3, 11, 9), False), ((3, 12, 0), True), ((3, 14, 0), True)])
def test_the_stable_abi_fits_the_version_it_was_built_for_and_later_ones(installed, version, fits):
    installed("_zmq.abi3.so", "cp312-abi3")
    assert bool(lend_zmq(LINUX_311, version).path) is fits


def test_nothing_is_lent_where_nothing_is_installed(monkeypatch):
    monkeypatch.setattr(lent_packages, "find_spec", lambda name: None)
    assert lend_zmq(LINUX_311, (3, 11, 7)) == Loan(path="", refused="neither has this command")


def test_the_installed_pyzmq_fits_this_interpreter():
    assert lend_zmq(importlib.machinery.EXTENSION_SUFFIXES, tuple(sys.version_info[:3])).path
