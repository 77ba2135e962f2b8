"""What looks wrong with a trained network, in words: `network.diagnose(x, y)`."""

from bayesmp.diagnosis.advice import Diagnosis, Finding
from bayesmp.diagnosis.judge import diagnose
from bayesmp.diagnosis.run_summary import RunSummary
from bayesmp.diagnosis.training import EXPLAINED, explained_otherwise

__all__ = ["EXPLAINED", "Diagnosis", "Finding", "RunSummary", "diagnose", "explained_otherwise"]
