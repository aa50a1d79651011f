"""The wheel holds every file, all of them under `probe`, and the sdist builds the same wheel."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BUILD = "import setuptools.build_meta as build, sys; print(getattr(build, 'build_' + sys.argv[1])(sys.argv[2]))"


def sources() -> set[str]:
    """The path in the wheel of each of our modules, and of what they read."""
    folders = {"probe": "probe", "agent": "probe/agent", "cli": "probe/cli"}
    return {
        f"{place}/{path.relative_to(ROOT / folder)}"
        for folder, place in folders.items()
        for path in (ROOT / folder).rglob("*.*")
        if path.suffix in (".py", ".typed", ".sql", ".html", ".js")
        and not any(parent.is_symlink() for parent in path.parents)
    }


def build(kind: str, tree: Path, folder: Path) -> Path:
    command = [sys.executable, "-c", BUILD, kind, str(folder)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.splitlines()[-1]


def modules(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy to build in, so that the build leaves nothing in the checkout itself."""
    copy = tmp_path_factory.mktemp("checkout") / "tree"
    kept = {"probe", "agent", "cli", "src", "pyproject.toml", "README.md", "LICENSE"}
    skipped = {path.name for path in ROOT.iterdir()} - kept

    def ignore(folder: str, names: list[str]) -> set[str]:
        return skipped if Path(folder) == ROOT else {"__pycache__"} & set(names)

    shutil.copytree(ROOT, copy, symlinks=True, ignore=ignore)
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", checkout, tmp_path_factory.mktemp("wheel"))


def test_every_file_is_in_the_wheel(wheel: Path) -> None:
    assert modules(wheel) == sources()


@pytest.mark.slow
def test_the_sdist_builds_the_same_wheel(checkout: Path, wheel: Path, tmp_path: Path) -> None:
    sdist = build("sdist", checkout, tmp_path)
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    assert modules(build("wheel", tmp_path / sdist.name.removesuffix(".tar.gz"), tmp_path)) == modules(wheel)


def test_only_probe_becomes_an_import_name(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*pip, str(wheel)], check=True)
    assert {re.sub(r"-.*", "", path.name) for path in site.iterdir()} == {"probe", "torch_probe", "bin"}
    check = (
        f"import sys; sys.path.insert(0, {str(site)!r}); import probe.agent, probe.cli, importlib.util as util;"
        f"assert probe.cli.__file__.startswith({str(site)!r});"
        "assert util.find_spec('agent') is None and util.find_spec('cli') is None"
    )
    subprocess.run([sys.executable, "-c", check], cwd=tmp_path, check=True)


def test_an_editable_install_leaks_no_import_name_either(tmp_path: Path) -> None:
    check = "import importlib.util as util; assert not util.find_spec('agent') and not util.find_spec('cli')"
    subprocess.run([sys.executable, "-c", check], cwd=tmp_path, check=True)


def test_the_top_level_has_no_other_file_or_folder() -> None:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a checkout of git")
    tops = {line.split("/")[0] for line in done.stdout.splitlines()}
    files = {name for name in tops if not name.startswith(".") and (ROOT / name).is_file()}
    assert files == {
        "CHANGELOG.md",
        "LICENSE",
        "Makefile",
        "README.md",
        "SECURITY.md",
        "constraints.txt",
        "pyproject.toml",
    }
    folders = {name for name in tops - files if not name.startswith(".")}
    assert folders == {"agent", "cli", "docs", "probe", "src", "tests"}
