"""Building blocks for models: embeddings, towers, and the parts that published networks are made of."""

from sparsefleet.core.initializer import Constant, Initializer, Normal, Uniform
from sparsefleet.nn.cin import CompressedInteractions
from sparsefleet.nn.cross import CrossLayers
from sparsefleet.nn.deep import Deep
from sparsefleet.nn.embedding import SparseEmbedding
from sparsefleet.nn.experts import GatedExperts
from sparsefleet.nn.fm import WeightedPairs, pair_products
from sparsefleet.nn.history_attention import HistoryAttention
from sparsefleet.nn.inputs import dense_input
from sparsefleet.nn.linear_term import LinearTerm, weights_and_vectors
from sparsefleet.nn.pooled_tower import PooledTower
from sparsefleet.nn.self_attention import FieldAttention, NumberFields
from sparsefleet.nn.sequence_embedding import Sequence, SequenceEmbedding
from sparsefleet.nn.shallow_deep import ShallowDeep
from sparsefleet.nn.tower import DenseTower

__all__ = [
    "CompressedInteractions",
    "Constant",
    "CrossLayers",
    "Deep",
    "DenseTower",
    "FieldAttention",
    "GatedExperts",
    "HistoryAttention",
    "Initializer",
    "LinearTerm",
    "Normal",
    "NumberFields",
    "PooledTower",
    "Sequence",
    "SequenceEmbedding",
    "ShallowDeep",
    "SparseEmbedding",
    "Uniform",
    "WeightedPairs",
    "dense_input",
    "pair_products",
    "weights_and_vectors",
]
