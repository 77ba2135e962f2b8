"""What looks wrong with a trained network, in words: `network.diagnose(x, y)`."""

from bayesmp.diagnosis.advice import Diagnosis, Finding
from bayesmp.diagnosis.judge import diagnose
from bayesmp.diagnosis.run_summary import RunSummary

__all__ = ["Diagnosis", "Finding", "RunSummary", "diagnose"]
