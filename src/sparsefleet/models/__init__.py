"""Ready models: ordinary `torch.nn.Module`s that take a Batch. `SHELF` is what `--model` calls them, `MODELS` what
names in checkpoints stand for.
"""

from sparsefleet.models.autoint import AutoInt
from sparsefleet.models.base import ModelInputs, Rebuildable, SchemaModel
from sparsefleet.models.ctr_dnn import CTRDNN, PRESETS, CTRDNNConfig
from sparsefleet.models.dcnv2 import DCNv2
from sparsefleet.models.deepfm import DeepFM
from sparsefleet.models.din import DIN
from sparsefleet.models.dnn import DNN
from sparsefleet.models.esmm import ESMM
from sparsefleet.models.fm import FM
from sparsefleet.models.fwfm import FwFM
from sparsefleet.models.lr import LogisticRegression
from sparsefleet.models.mmoe import MMoE
from sparsefleet.models.registry import MODELS, SHELF, build, describe
from sparsefleet.models.settings import Settings, setting
from sparsefleet.models.shared_bottom import SharedBottom
from sparsefleet.models.widedeep import WideDeep
from sparsefleet.models.xdeepfm import XDeepFM

__all__ = [
    "CTRDNN",
    "DIN",
    "DNN",
    "ESMM",
    "FM",
    "MODELS",
    "PRESETS",
    "SHELF",
    "AutoInt",
    "CTRDNNConfig",
    "DCNv2",
    "DeepFM",
    "FwFM",
    "LogisticRegression",
    "MMoE",
    "ModelInputs",
    "Rebuildable",
    "SchemaModel",
    "Settings",
    "SharedBottom",
    "WideDeep",
    "XDeepFM",
    "build",
    "describe",
    "setting",
]
