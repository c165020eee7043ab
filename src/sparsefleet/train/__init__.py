"""Training, evaluating and predicting with a model over any store."""

from sparsefleet.train.fetch import FetchHandler
from sparsefleet.train.replica import DivergedError
from sparsefleet.train.row_source import attach
from sparsefleet.train.run import FitResult
from sparsefleet.train.save_policy import SavePolicy
from sparsefleet.train.trainer import Trainer
from sparsefleet.train.training_state import TrainingState
from sparsefleet.train.validation import Validation

__all__ = [
    "DivergedError",
    "FetchHandler",
    "FitResult",
    "SavePolicy",
    "Trainer",
    "TrainingState",
    "Validation",
    "attach",
]
