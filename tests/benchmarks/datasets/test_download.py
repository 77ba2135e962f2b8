"""Downloads from file:// addresses: no network."""

import hashlib

import pytest

from benchmarks.datasets.download import ChecksumError, DownloadError, RemoteFile, data_directory, fetch, verify

CONTENT = b"the published bytes"
SHA256 = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
MD5 = f"md5:{hashlib.md5(CONTENT).hexdigest()}"


@pytest.fixture
def host(tmp_path):
    """A folder that serves the right file and a damaged one, and lacks a third."""
    folder = tmp_path / "host"
    folder.mkdir()
    (folder / "right").write_bytes(CONTENT)
    (folder / "damaged").write_bytes(CONTENT[:-1])
    return {name: (folder / name).as_uri() for name in ("right", "damaged", "absent")}


@pytest.mark.parametrize("digest", [SHA256, MD5, None])
def test_a_file_is_fetched_once(tmp_path, host, digest):
    file = RemoteFile("file.bin", (host["right"],), digest)
    path = fetch(file, tmp_path / "new" / "folder")
    assert path.read_bytes() == CONTENT
    assert fetch(RemoteFile("file.bin", (host["absent"],), digest), path.parent) == path
    assert [entry.name for entry in path.parent.iterdir()] == ["file.bin"]


def test_the_sources_are_tried_in_turn(tmp_path, host):
    path = fetch(RemoteFile("file.bin", (host["absent"], host["damaged"], host["right"]), SHA256), tmp_path)
    assert path.read_bytes() == CONTENT


def test_a_wrong_download_is_refused_and_not_kept(tmp_path, host):
    with pytest.raises(ChecksumError, match=SHA256.removeprefix("sha256:")):
        fetch(RemoteFile("file.bin", (host["damaged"],), SHA256), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_no_source_at_all_names_them(tmp_path, host):
    with pytest.raises(DownloadError, match="absent"):
        fetch(RemoteFile("file.bin", (host["absent"],), SHA256), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_damaged_file_that_is_already_there_is_not_trusted(tmp_path, host):
    (tmp_path / "file.bin").write_bytes(b"something else")
    with pytest.raises(ChecksumError, match="delete it"):
        fetch(RemoteFile("file.bin", (host["right"],), SHA256), tmp_path)


def test_verify_accepts_the_right_file(tmp_path):
    (tmp_path / "file").write_bytes(CONTENT)
    verify(tmp_path / "file", SHA256)
    verify(tmp_path / "file", MD5)


def test_the_directory_is_the_argument_then_the_environment_then_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    monkeypatch.setenv("BAYESMP_DATA", str(tmp_path / "environment"))
    assert data_directory(tmp_path / "argument") == tmp_path / "argument"
    assert data_directory() == tmp_path / "environment"
    assert data_directory("~/own") == tmp_path / "home" / "own"
    monkeypatch.setenv("BAYESMP_DATA", "")
    assert data_directory() == tmp_path / "home" / ".cache" / "bayesmp"
