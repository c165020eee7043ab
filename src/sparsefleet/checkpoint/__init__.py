"""Checkpoints: everything of one moment in one directory, loadable on any number of servers. See FORMAT.md.

Writing: `begin`, `write_sparse_shard` / `write_dense` / `write_buffers` (any process), `commit`.
Reading: `Checkpoint.open`. A run's folder: `step_path`, `cut_path`, `point_latest`, `latest`, `best`, `chosen`,
`prune`.
Looking: `show`, `diff`.
"""

from sparsefleet.checkpoint.chain import Chain, ChainPolicy
from sparsefleet.checkpoint.compare import diff, show
from sparsefleet.checkpoint.dense import DensePiece, named, write_buffers, write_dense
from sparsefleet.checkpoint.draft import CheckpointDraft, abort, begin, commit
from sparsefleet.checkpoint.manifest import Base, BlockInfo, FileEntry, Layout, Manifest, Partition, TableInfo
from sparsefleet.checkpoint.parse import file_entry
from sparsefleet.checkpoint.reader import Checkpoint
from sparsefleet.checkpoint.retention import (
    best,
    best_step,
    chosen,
    cut_path,
    latest,
    loadable,
    point_latest,
    prune,
    same_place,
    step_path,
    to_go_on_from,
)
from sparsefleet.checkpoint.sparse import write_sparse_shard
from sparsefleet.checkpoint.storage import AnyPath, Location, locate

__all__ = [
    "AnyPath",
    "Base",
    "BlockInfo",
    "Chain",
    "ChainPolicy",
    "Checkpoint",
    "CheckpointDraft",
    "DensePiece",
    "FileEntry",
    "Layout",
    "Location",
    "Manifest",
    "Partition",
    "TableInfo",
    "abort",
    "begin",
    "best",
    "best_step",
    "chosen",
    "commit",
    "cut_path",
    "diff",
    "file_entry",
    "latest",
    "loadable",
    "locate",
    "named",
    "point_latest",
    "prune",
    "same_place",
    "show",
    "step_path",
    "to_go_on_from",
    "write_buffers",
    "write_dense",
    "write_sparse_shard",
]
