"""SparseFleet: train models with huge sparse embedding tables on CPU machines, from PyTorch.

    import sparsefleet as sf

    schema = sf.Schema.load("data")
    trainer = sf.Trainer(sf.optim.Adam(1e-3))
    trainer.fit(sf.CTRDNN(), sf.open_reader("data/train", schema))

The front door: all that a script needs, by name. docs/api.md explains each name, `__init__.pyi` tells editors and mypy
their types. A name is loaded when it is first used: nothing heavy is imported here, and a data generator, which a pipe
command starts once per file, is there in a few milliseconds.
"""

__version__ = "0.1.0"

_MODULES = ("applications", "data", "fleet", "fluid", "metrics", "models", "nn", "optim", "verify")
"""Modules whose own names are public too: sf.optim.Adam, sf.nn.SparseEmbedding, sf.fleet.init."""
_HOMES = {
    # samples and where they come from
    "Batch": "core.batch",
    "CRITEO": "core.schema",
    "CsvDialect": "core.schema",
    "DatasetFactory": "data.dataset_factory",
    "DenseFeature": "core.schema",
    "Feeder": "data.feeder",
    "InMemoryDataset": "data.in_memory",
    "Label": "core.schema",
    "MultiSlotDataGenerator": "data.generator",
    "MultiSlotStringDataGenerator": "data.generator",
    "PyReader": "data.py_reader",
    "QueueDataset": "data.queue_dataset",
    "Reader": "data.base",
    "Schema": "core.schema",
    "Slot": "core.schema",
    "SynthSpec": "datasets.synth",
    "list_files": "data.files",
    "open_reader": "data.open",
    "schema_beside": "data.beside",
    "stable_hash": "data.stable_hash",
    "synth": "datasets.synth",
    # models
    "CTRDNN": "models.ctr_dnn",
    "CTRDNNConfig": "models.ctr_dnn",
    "Rebuildable": "models.base",
    "WordVectors": "word2vec.vectors",
    "saved_model": "scoring.saved_model",
    # training
    "FetchHandler": "train.fetch",
    "FitResult": "train.run",
    "JsonLinesReporter": "train.reporting.jsonl",
    "Reporter": "train.reporting.base",
    "SavePolicy": "train.save_policy",
    "Validation": "train.validation",
    "TensorBoardReporter": "train.reporting.tensorboard",
    "TrainConfigs": "core.train_configs",
    "Trainer": "train.trainer",
    "attach": "train.row_source",
    "console_reporter": "train.reporting.console",
    "parse_train_configs": "core.train_configs",
    # where parameters are, and what is kept of them
    "Checkpoint": "checkpoint.reader",
    "LocalStore": "store.local",
    "ParameterStore": "store.base",
    "latest_checkpoint": "checkpoint.retention",
    # serving
    "Bundle": "export.bundle",
    "Predictor": "serving.predictor",
    "RedisSource": "serving.redis.source",
    "SparseSource": "serving.source",
    "export_checkpoint": "export.exporting",
    "export_model": "export.exporting",
    "publish": "serving.redis.publish",
    # errors
    "BadRowError": "core.errors",
    "BundleError": "core.errors",
    "CheckpointError": "core.errors",
    "ConfigError": "core.errors",
    "DataError": "core.errors",
    "DivergedError": "train.replica",
    "SparseFleetError": "core.errors",
    "StoreError": "core.errors",
    "plain_errors": "core.errors",
}
_OTHER_NAMES = {"latest_checkpoint": "latest"}
"""What a name is called at home, where that is something else."""

__all__ = sorted([*_MODULES, *_HOMES, "__version__"])


def __getattr__(name: str):  # type: ignore[no-untyped-def]
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; docs/api.md lists what it has")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), _OTHER_NAMES.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
