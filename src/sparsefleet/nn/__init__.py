"""Building blocks for models: `SparseEmbedding`, `DenseTower` and both together; what a model's output means."""

from sparsefleet.core.initializer import Constant, Initializer, Normal, Uniform
from sparsefleet.nn.embedding import SparseEmbedding
from sparsefleet.nn.inputs import dense_input
from sparsefleet.nn.pooled_tower import PooledTower
from sparsefleet.nn.tower import DenseTower

__all__ = [
    "Constant",
    "DenseTower",
    "Initializer",
    "Normal",
    "PooledTower",
    "SparseEmbedding",
    "Uniform",
    "dense_input",
]
