"""Ready models: ordinary `torch.nn.Module`s that take a Batch. `MODELS` is what names in checkpoints stand for."""

from sparsefleet.models.base import Rebuildable
from sparsefleet.models.ctr_dnn import CTRDNN, PRESETS, CTRDNNConfig
from sparsefleet.models.registry import MODELS, build, describe

__all__ = ["CTRDNN", "MODELS", "PRESETS", "CTRDNNConfig", "Rebuildable", "build", "describe"]
