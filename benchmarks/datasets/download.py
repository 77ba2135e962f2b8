"""Where data files lie, and how they get there: fetched from the set's own host, kept only if the checksum fits."""

import hashlib
import http.client
import os
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tqdm import tqdm

from bayesmp.basics import atomic
from bayesmp.basics.atomic import PathLike

BLOCK = 1 << 20  # bytes read at a time
TIMEOUT = 60  # seconds without an answer


class MissingDataError(FileNotFoundError):
    """A data set is not where it was looked for; the message says where that is and how to get it."""


class ChecksumError(ValueError):
    """A file is not the published one."""


class DownloadError(OSError):
    """No source gave the file."""


@dataclass(frozen=True)
class RemoteFile:
    """A published file: its name, the places that offer it, and its checksum."""

    name: str
    urls: tuple[str, ...]
    digest: str | None  # "sha256:<hex>" or "md5:<hex>"; None where the content is checked after reading


def data_directory(data_dir: PathLike | None = None) -> Path:
    """The argument, else the environment variable BAYESMP_DATA, else ~/.cache/bayesmp."""
    if data_dir is not None:
        return Path(data_dir).expanduser()
    from_environment = os.environ.get("BAYESMP_DATA")
    return Path(from_environment).expanduser() if from_environment else Path.home() / ".cache" / "bayesmp"


def checksum(path: Path, algorithm: str) -> str:
    """Hex digest of a file."""
    state = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            state.update(block)
    return state.hexdigest()


def verify(path: Path, digest: str) -> None:
    """Raise ChecksumError unless the file has the digest "<algorithm>:<hex>"."""
    algorithm, expected = digest.split(":")
    found = checksum(path, algorithm)
    if found != expected:
        raise ChecksumError(
            f"{path} is not the published file: its {algorithm} is {found}, expected {expected}; "
            "delete it and try again"
        )


def fetch(file: RemoteFile, folder: Path) -> Path:
    """The path of the file in `folder`, downloaded unless it is there already; its checksum is verified either way.

    The sources are tried in turn. An incomplete or wrong download never gets the file's name.
    """
    target = folder / file.name
    if target.exists():
        if file.digest is not None:
            verify(target, file.digest)
        return target
    folder.mkdir(parents=True, exist_ok=True)
    failures = []
    for url in file.urls:
        try:
            with atomic.writing(target) as draft:
                _download(url, draft)
                if file.digest is not None:
                    verify(Path(draft.name), file.digest)
            return target
        except (OSError, http.client.HTTPException, ChecksumError) as error:
            failures.append((url, error))
    reasons = "".join(f"\n  {url}: {error}" for url, error in failures)
    message = f"could not download {file.name} to {folder}:{reasons}"
    if failures and all(isinstance(error, ChecksumError) for _, error in failures):
        raise ChecksumError(message)
    raise DownloadError(message)


def _download(url: str, target: BinaryIO) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "bayesmp"})  # some hosts refuse urllib's own name
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        size = int(response.headers.get("Content-Length") or 0)
        with tqdm(
            total=size or None, unit="B", unit_scale=True, desc=url.rsplit("/", 1)[-1], leave=False, disable=None
        ) as progress:
            n_bytes = 0
            while block := response.read(BLOCK):
                n_bytes += target.write(block)
                progress.update(len(block))
    target.flush()
    if size and n_bytes != size:
        raise OSError(f"the connection ended after {n_bytes} of {size} bytes")
