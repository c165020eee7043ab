"""What the front door gives, for editors and mypy. `__init__.py` loads it; tests/core/test_front_door.py compares."""

from sparsefleet import applications, data, fleet, fluid, metrics, models, nn, optim, verify
from sparsefleet.checkpoint.reader import Checkpoint
from sparsefleet.checkpoint.retention import latest as latest_checkpoint
from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import (
    BadRowError,
    BundleError,
    CheckpointError,
    ConfigError,
    DataError,
    SparseFleetError,
    StoreError,
    plain_errors,
)
from sparsefleet.core.schema import CRITEO, CsvDialect, DenseFeature, Label, Schema, Slot
from sparsefleet.core.train_configs import TrainConfigs, parse_train_configs
from sparsefleet.data.base import Reader
from sparsefleet.data.beside import schema_beside
from sparsefleet.data.dataset_factory import DatasetFactory
from sparsefleet.data.feeder import Feeder
from sparsefleet.data.files import list_files
from sparsefleet.data.generator import MultiSlotDataGenerator, MultiSlotStringDataGenerator
from sparsefleet.data.in_memory import InMemoryDataset
from sparsefleet.data.open import open_reader
from sparsefleet.data.py_reader import PyReader
from sparsefleet.data.queue_dataset import QueueDataset
from sparsefleet.data.stable_hash import stable_hash
from sparsefleet.datasets.synth import SynthSpec, synth
from sparsefleet.export.bundle import Bundle
from sparsefleet.export.exporting import export_checkpoint, export_model
from sparsefleet.models.base import Rebuildable
from sparsefleet.models.ctr_dnn import CTRDNN, CTRDNNConfig
from sparsefleet.scoring.saved_model import saved_model
from sparsefleet.serving.predictor import Predictor
from sparsefleet.serving.redis.publish import publish
from sparsefleet.serving.redis.source import RedisSource
from sparsefleet.serving.source import SparseSource
from sparsefleet.store.base import ParameterStore
from sparsefleet.store.local import LocalStore
from sparsefleet.train.fetch import FetchHandler
from sparsefleet.train.replica import DivergedError
from sparsefleet.train.reporting.base import Reporter
from sparsefleet.train.reporting.console import console_reporter
from sparsefleet.train.reporting.jsonl import JsonLinesReporter
from sparsefleet.train.reporting.tensorboard import TensorBoardReporter
from sparsefleet.train.row_source import attach
from sparsefleet.train.run import FitResult
from sparsefleet.train.save_policy import SavePolicy
from sparsefleet.train.trainer import Trainer
from sparsefleet.train.validation import Validation
from sparsefleet.word2vec.vectors import WordVectors

__version__: str

__all__ = [
    "CRITEO",
    "CTRDNN",
    "BadRowError",
    "Batch",
    "Bundle",
    "BundleError",
    "CTRDNNConfig",
    "Checkpoint",
    "CheckpointError",
    "ConfigError",
    "CsvDialect",
    "DataError",
    "DatasetFactory",
    "DenseFeature",
    "DivergedError",
    "Feeder",
    "FetchHandler",
    "FitResult",
    "InMemoryDataset",
    "JsonLinesReporter",
    "Label",
    "LocalStore",
    "MultiSlotDataGenerator",
    "MultiSlotStringDataGenerator",
    "ParameterStore",
    "Predictor",
    "PyReader",
    "QueueDataset",
    "Reader",
    "Rebuildable",
    "RedisSource",
    "Reporter",
    "SavePolicy",
    "Schema",
    "Slot",
    "SparseFleetError",
    "SparseSource",
    "StoreError",
    "SynthSpec",
    "TensorBoardReporter",
    "TrainConfigs",
    "Trainer",
    "Validation",
    "WordVectors",
    "__version__",
    "applications",
    "attach",
    "console_reporter",
    "data",
    "export_checkpoint",
    "export_model",
    "fleet",
    "fluid",
    "latest_checkpoint",
    "list_files",
    "metrics",
    "models",
    "nn",
    "open_reader",
    "optim",
    "parse_train_configs",
    "plain_errors",
    "publish",
    "saved_model",
    "schema_beside",
    "stable_hash",
    "synth",
    "verify",
]
