"""What tests of diagnoses share: runs whose warnings are not the point, and the one finding of a kind."""

from __future__ import annotations

import warnings

import bayesmp as bmp
from bayesmp.diagnosis import Diagnosis, Finding


def trained(network: bmp.Network, x, y, epochs: int | str = 40, **options) -> bmp.Trainer:
    """A run whose warnings are not the point here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        trainer = bmp.Trainer(network, x, y, **options)
        trainer.run(epochs, progress=False)
    return trainer


def found(diagnosis: Diagnosis, kind: str) -> Finding:
    """The one finding of this kind."""
    (finding,) = [finding for finding in diagnosis.findings if finding.kind == kind]
    return finding
