"""A release: what is in it, that it can be built again byte for byte, and that a changed one is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

REPOSITORY: Final = Path(__file__).resolve().parents[2]
PAGE: Final = (REPOSITORY / "docs" / "operate" / "releases.md").read_text(encoding="utf-8")
FOLDERS: Final = ("mirror_core", "mirrorbook_tools", "dags", "deploy", "monitoring/alerts.yaml")
ENVIRONMENT: Final = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "SSH_"))}


def run(*command: str, cwd: Path, code: int = 0, **environment: str) -> str:
    """Standard output and error."""
    ended = subprocess.run(
        command,
        cwd=cwd,
        env=ENVIRONMENT | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == code, f"{command}: {ended.returncode}\n{ended.stdout}{ended.stderr}"
    return ended.stdout + ended.stderr


def make_key(folder: Path, name: str) -> Path:
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(folder / name), cwd=folder)
    return folder / name


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of its own with one commit: the files of this one as they are now."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in run("git", "ls-files", "-z", cwd=REPOSITORY).split("\0"):
        if name and (REPOSITORY / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, folder / name)
    author = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org", "-c", "commit.gpgsign=false")
    run("git", "init", "--quiet", cwd=folder)
    run("git", "add", "--all", cwd=folder)
    run("git", *author, "commit", "--quiet", "--no-verify", "--message", "all", cwd=folder)
    (folder / ".venv").symlink_to(sys.prefix)
    return folder


@dataclass(frozen=True, slots=True)
class Release:
    folder: Path
    signers: Path
    """What a user has of the key: a line that did not come with the release."""

    def verify(self, code: int = 0) -> str:
        """The commands that the page tells users to paste."""
        (block,) = re.findall(r"```\n\$ (ssh-keygen -Y verify .*?)\n```", PAGE, re.DOTALL)
        commands = f"set -e\n{block}".replace("\n$ ", "\n").replace("mirrorbook.signers", str(self.signers))
        return run("bash", "-c", commands, cwd=self.folder, code=code)


def write_signers(folder: Path, key: Path) -> Path:
    signers = folder / f"{key.name}.signers"
    signers.write_text(f"releases@mirrorbook {key.with_suffix('.pub').read_text(encoding='utf-8')}", encoding="utf-8")
    return signers


@pytest.fixture(scope="module")
def built(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Release:
    folder = tmp_path_factory.mktemp("built")
    key = make_key(folder, "key")
    run("bash", ".ci/release", cwd=checkout, KEY=str(key), OUT=str(folder / "out"))
    return Release(folder / "out", write_signers(folder, key))


@pytest.fixture
def release(built: Release, tmp_path: Path) -> Release:
    """A copy, to be changed."""
    return Release(Path(shutil.copytree(built.folder, tmp_path / "release")), built.signers)


def test_a_release_is_verified_by_the_documented_commands(built: Release) -> None:
    assert sorted(re.sub(r"\d+\.\d+\.\d+", "X", path.name) for path in built.folder.iterdir()) == [
        "SHA256SUMS",
        "SHA256SUMS.sig",
        "mirrorbook-X-py3-none-any.whl",
        "mirrorbook-X.cdx.json",
        "mirrorbook-X.tar.gz",
    ]
    said = built.verify()
    assert 'Good "mirrorbook-release" signature for releases@mirrorbook' in said
    assert said.count(": OK") == 3


def change_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("pattern", ["*.whl", "*.tar.gz", "*.cdx.json", "SHA256SUMS", "SHA256SUMS.sig"])
def test_one_changed_byte_of_any_file_is_refused(release: Release, pattern: str) -> None:
    (path,) = release.folder.glob(pattern)
    change_byte(path)
    with pytest.raises(AssertionError, match=r"FAILED|Could not verify|invalid format|incorrect signature"):
        release.verify()


def sign_again(release: Release, folder: Path) -> None:
    """What whoever can replace the files, but has not the key, would do."""
    key = make_key(folder, "other")
    (release.folder / "SHA256SUMS.sig").unlink()
    run("ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", "mirrorbook-release", "SHA256SUMS", cwd=release.folder)


def sign_for_another_purpose(release: Release, folder: Path) -> None:
    """A signature by the right key that was given for something else, such as a commit."""
    (release.folder / "SHA256SUMS.sig").unlink()
    key = str(release.signers.parent / "key")
    run("ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", "git", "SHA256SUMS", cwd=release.folder)


def leave_out_a_file(release: Release, folder: Path) -> None:
    next(release.folder.glob("*.whl")).unlink()


@pytest.mark.parametrize("attack", [sign_again, sign_for_another_purpose, leave_out_a_file])
def test_a_release_of_another_key_or_purpose_or_without_a_file_is_refused(
    release: Release, tmp_path: Path, attack: Callable[[Release, Path], None]
) -> None:
    attack(release, tmp_path)
    with pytest.raises(AssertionError, match=r"FAILED|Could not verify|incorrect signature|NONE_PRESENT"):
        release.verify()


def test_the_same_commit_gives_the_same_bytes_elsewhere(checkout: Path, built: Release, tmp_path: Path) -> None:
    again = tmp_path / "a folder of another name"
    run("git", "clone", "--quiet", "--no-local", str(checkout), str(again), cwd=tmp_path)
    (again / ".venv").symlink_to(sys.prefix)
    key = str(built.signers.parent / "key")
    command = "umask 077; exec bash .ci/release"
    run("bash", "-c", command, cwd=again, KEY=key, OUT=str(tmp_path / "out"), TZ="Asia/Tokyo", LANG="C", USER="else")
    for path in sorted(built.folder.iterdir()):
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes(), path.name


def test_its_wheel_has_all_of_the_packages_and_its_list_all_of_the_lock(built: Release) -> None:
    (wheel,) = built.folder.glob("*.whl")
    tracked = run("git", "ls-files", *FOLDERS, cwd=REPOSITORY).split()
    packed = {name.partition(".data/data/share/mirrorbook/")[2] or name for name in zipfile.ZipFile(wheel).namelist()}
    assert set(tracked) - packed == set(), "the sdist is not complete"
    (listed,) = built.folder.glob("*.cdx.json")
    document = json.loads(listed.read_text(encoding="utf-8"))
    components = {(component["name"], component["version"]) for component in document["components"]}
    lock = (REPOSITORY / "requirements.lock").read_text(encoding="utf-8")
    assert components == set(re.findall(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", lock, re.MULTILINE))
    assert all(component["externalReferences"][0]["hashes"] for component in document["components"])
    assert document["metadata"]["component"]["name"] == "mirrorbook"


def test_without_a_key_or_into_a_folder_with_files_nothing_is_released(checkout: Path, tmp_path: Path) -> None:
    key = make_key(tmp_path, "key")
    assert "make release KEY=" in run("bash", ".ci/release", cwd=checkout, code=1, KEY="", OUT=str(tmp_path / "out"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "of yesterday").touch()
    said = run("bash", ".ci/release", cwd=checkout, code=2, KEY=str(key), OUT=str(tmp_path / "full"))
    assert "is not empty" in said
    assert not (tmp_path / "out").exists()


def test_a_key_that_cannot_sign_leaves_nothing_behind(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("no key", encoding="utf-8")
    out = tmp_path / "out"
    run("bash", ".ci/release", cwd=checkout, code=255, KEY=str(tmp_path / "key"), OUT=str(out))
    assert not out.exists()
