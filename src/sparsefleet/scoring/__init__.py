"""Scoring files with a saved model: in this process (`Scoring`), or a share each in many (`score_with_workers`).

`sparsefleet infer` is its command.
"""

from sparsefleet.scoring.importance import Importance, measure_importance
from sparsefleet.scoring.predictions import check_name
from sparsefleet.scoring.saved_model import saved_model
from sparsefleet.scoring.scoring import Scoring
from sparsefleet.scoring.told_reader import Tell
from sparsefleet.scoring.workers import score_with_workers

__all__ = ["Importance", "Scoring", "Tell", "check_name", "measure_importance", "saved_model", "score_with_workers"]
