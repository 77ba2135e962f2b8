"""Finished pieces on disk: a JSON file each, with an .npz beside it for arrays. Files are whole at any moment."""

from __future__ import annotations

import hashlib
import json
import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.base import Experiment, Piece, Record, Result


def piece_key(experiment: Experiment, piece: Piece) -> str:
    """A short digest of all that a piece depends on."""
    what = {"experiment": experiment.name, "version": experiment.version, "parameters": piece.parameters}
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]


class PieceStore:
    """The pieces of one experiment in a folder."""

    def __init__(self, folder: Path, experiment: Experiment) -> None:
        self.folder = folder
        self.experiment = experiment

    def path(self, piece: Piece) -> Path:
        """pieces/LABEL-DIGEST.json: the digest is what counts, the label is for people."""
        slug = re.sub(r"[^a-z0-9.]+", "-", piece.label.lower()).strip("-")[:60]
        return self.folder / f"{slug}-{piece_key(self.experiment, piece)}.json"

    def load(self, piece: Piece) -> Result | None:
        """The finished piece; None if it is not there, or was damaged."""
        path = self.path(piece)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            arrays: dict[str, Any] = {}
            if content["has_arrays"]:
                with np.load(path.with_suffix(".npz")) as stored:
                    arrays = {name: stored[name] for name in stored.files}
            return Result(piece, content["numbers"], arrays, content["seconds"], content["made"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, OSError, zipfile.BadZipFile) as error:
            print(f"{path} is damaged and will be computed anew ({error})", flush=True)
            return None

    def save(self, piece: Piece, record: Record, *, seconds: float, made: Mapping[str, Any]) -> Path:
        """Write a piece: the arrays first, then the JSON file that says it is finished."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.path(piece)
        arrays = {name: value for name, value in record.items() if isinstance(value, np.ndarray)}
        content = {
            "label": piece.label,
            "parameters": dict(piece.parameters),
            "numbers": {name: value for name, value in record.items() if name not in arrays},
            "has_arrays": bool(arrays),
            "seconds": seconds,
            "made": dict(made),
        }
        text = json.dumps(content, indent=1)  # now: what is not JSON must not leave half a piece
        if arrays:
            partial = path.with_suffix(f".{os.getpid()}.part")
            with open(partial, "wb") as file:
                np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
            partial.replace(path.with_suffix(".npz"))
        write_whole(path, text)
        return path

    def forget(self, pieces: list[Piece]) -> int:
        """Remove these pieces; how many there were."""
        n_removed = 0
        for piece in pieces:
            path = self.path(piece)
            n_removed += path.exists()
            for part in (path, path.with_suffix(".npz"), path.with_suffix(".state")):
                part.unlink(missing_ok=True)
        return n_removed


def write_whole(path: Path, text: str) -> None:
    """Write a text file so that it is never seen in part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
