"""The file with a job's keys: what it holds, and who may read it."""

from __future__ import annotations

import json
import os
import resource
import stat
from pathlib import Path

import pytest

from probe import keys
from probe.cli.entry import run
from probe.errors import UsageError
from probe.protocol import CONTROL, READ


@pytest.fixture
def made(tmp_path: Path) -> Path:
    keys.create(str(tmp_path / "job.key"))
    return tmp_path / "job.key"


def test_a_key_is_for_its_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o277)
    try:
        keys.create(str(tmp_path / "a"))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


def test_a_key_that_exists_is_not_overwritten(made: Path) -> None:
    before = made.read_text()
    with pytest.raises(UsageError, match="exists already"):
        keys.create(str(made))
    with pytest.raises(UsageError, match="exists already"):
        keys.share(str(made), str(made))
    assert made.read_text() == before


def test_a_key_for_which_the_disk_has_no_room_leaves_no_file(tmp_path: Path) -> None:
    path, limits = tmp_path / "job.key", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))  # bytes: it fails as on a full disk, in the middle
    try:
        with pytest.raises(UsageError, match=r"cannot be written to .*: File too large"):
            keys.create(str(path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not path.exists()
    keys.create(str(path))


def test_the_part_for_readers_has_no_secret_but_theirs(made: Path, tmp_path: Path) -> None:
    keys.share(str(made), str(tmp_path / "reader.key"))
    whole, part = keys.read(str(made)), keys.read(str(tmp_path / "reader.key"))
    assert part.roles == {READ: whole.roles[READ]} and part.client == whole.roles[READ]
    assert (part.server_public, part.server_secret) == (whole.server_public, "")
    text = (tmp_path / "reader.key").read_text()
    assert whole.server_secret not in text and whole.roles[CONTROL].secret not in text
    assert whole.client == whole.roles[CONTROL]


def test_a_server_gets_no_secret_of_a_client(made: Path, tmp_path: Path) -> None:
    key = keys.read(str(made))
    told = json.dumps(key.of_server())
    assert key.server_secret in told and all(pair.secret not in told for pair in key.roles.values())
    keys.share(str(made), str(tmp_path / "reader.key"))
    with pytest.raises(UsageError, match="is a key for readers"):
        keys.read(str(tmp_path / "reader.key")).of_server()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o700, 0o604, 0o200 | 0o404])
def test_a_key_that_others_may_read_is_refused_with_the_remedy(made: Path, mode: int) -> None:
    made.chmod(mode)
    with pytest.raises(UsageError) as caught:
        keys.read(str(made))
    assert (caught.value.code, caught.value.hint) == ("key-file", f"Run: chmod 600 {made}")
    made.chmod(0o400)
    keys.read(str(made))


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"probe_key": 1}', '{"probe_key": 1, "server": 3, "read": {}}']
)
def test_what_is_no_key_is_said_to_be_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a"
    path.touch(0o600)
    path.write_text(text)
    with pytest.raises(UsageError, match="is not a key of probe"):
        keys.read(str(path))


def test_a_key_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        keys.read(str(tmp_path / "none"))


def test_the_verb_makes_both_files_and_says_what_to_do_next(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    whole, part = str(tmp_path / "job.key"), str(tmp_path / "reader.key")
    assert run(["key", "create", whole]) == 0 == run(["key", "share", whole, part])
    assert f"--listen 0.0.0.0 --key {whole} PID" in (said := capfd.readouterr()).err and said.out == ""
    assert run(["key", "create", whole]) == 2
    assert run(["key", "share", whole]) == 2
    assert run(["key", "burn", whole]) == 2
    assert "probe key create FILE" in capfd.readouterr().err
