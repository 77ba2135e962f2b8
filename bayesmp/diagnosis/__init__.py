"""What looks wrong with a trained network, in words: `network.diagnose(x, y)`.

`findings.py` says what a finding is, `faces.py` in whose words it advises, `told.py` what training leaves behind to
judge by; `data.py`, `layers.py`, `fits.py`, `runs.py` and `predictions.py` hold the judgements, and `judge.py` asks all
of them.
"""

from bayesmp.diagnosis.faces import ESTIMATOR
from bayesmp.diagnosis.findings import Diagnosis, Finding
from bayesmp.diagnosis.judge import diagnose
from bayesmp.diagnosis.told import Told

__all__ = ["ESTIMATOR", "Diagnosis", "Finding", "Told", "diagnose"]
