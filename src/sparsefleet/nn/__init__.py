"""Building blocks for models: `SparseEmbedding`, `DenseTower`, and what a model's output means."""

from sparsefleet.core.initializer import Constant, Initializer, Normal, Uniform
from sparsefleet.nn.embedding import SparseEmbedding
from sparsefleet.nn.inputs import dense_input
from sparsefleet.nn.tower import DenseTower

__all__ = ["Constant", "DenseTower", "Initializer", "Normal", "SparseEmbedding", "Uniform", "dense_input"]
