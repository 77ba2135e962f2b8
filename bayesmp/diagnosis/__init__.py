"""What looks wrong with a trained network, in words: `network.diagnose(x, y)`.

`findings.py` says what a finding is, `told.py` what training leaves behind to judge by; `data.py`, `layers.py`,
`fits.py`, `runs.py` and `predictions.py` hold the judgements, and `judge.py` asks them all.
"""

from bayesmp.diagnosis.findings import Diagnosis, Finding
from bayesmp.diagnosis.judge import diagnose
from bayesmp.diagnosis.told import Told

__all__ = ["Diagnosis", "Finding", "Told", "diagnose"]
