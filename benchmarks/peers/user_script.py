"""What a competent user would write today: pyarrow, nn.EmbeddingBag(sparse=True), SparseAdam, torch's own threads.

Reads the same files, hashes into the same number of rows, trains the same network with the same optimizer.
"""

from __future__ import annotations

import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import torch
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from parts.warm import warm_memory

ROWS, DIM = 1000001, 10
MIN = np.array([0, -3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], np.float32)
DIFF = np.array([20, 603, 100, 50, 64000, 500, 100, 50, 500, 10, 10, 10, 50], np.float32)
NAMES = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]
TYPES = {
    "label": pa.int64(),
    **{f"I{i}": pa.float32() for i in range(1, 14)},
    **{f"C{i}": pa.string() for i in range(1, 27)},
}


def hashed(column: pa.ChunkedArray | pa.Array, prefix: str) -> np.ndarray:
    """A vectorised stable hash: only the distinct strings go through Python."""
    encoded = column.dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    table = np.array([zlib.crc32((prefix + v).encode()) % ROWS for v in encoded.dictionary.to_pylist()], np.int64)
    return table[encoded.indices.to_numpy()]


def read(files: list[str]):
    """(labels, dense, keys) of each block of a file."""
    for file in files:
        reader = pyarrow.csv.open_csv(
            file,
            read_options=pyarrow.csv.ReadOptions(column_names=NAMES, block_size=8 << 20),
            parse_options=pyarrow.csv.ParseOptions(delimiter="\t"),
            convert_options=pyarrow.csv.ConvertOptions(column_types=TYPES, strings_can_be_null=False),
        )
        for block in reader:
            labels = block.column("label").to_numpy()
            dense = [
                (pc.fill_null(block.column(f"I{i}"), float(MIN[i - 1])).to_numpy() - MIN[i - 1]) / DIFF[i - 1]
                for i in range(1, 14)
            ]
            keys = [hashed(block.column(f"C{i}"), str(13 + i)) for i in range(1, 27)]
            yield labels, np.stack(dense, 1), np.stack(keys, 1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=True)
        nn.init.uniform_(self.bag.weight, -0.01, 0.01)
        self.mlp = nn.Sequential(
            nn.Linear(26 * DIM + 13, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(),
            nn.Linear(400, 2),
        )  # fmt: skip

    def forward(self, dense: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        pooled = self.bag(keys.reshape(-1, 1)).view(len(keys), -1)
        return self.mlp(torch.cat([pooled, dense], 1))


def train(files: list[str], batch: int) -> float:
    """One epoch; rows per second from the first byte read to the last update."""
    net = Net()
    adam = torch.optim.Adam(net.mlp.parameters(), lr=1e-4)
    sparse = torch.optim.SparseAdam(net.bag.parameters(), lr=1e-4)
    warm_memory()
    begin, rows = time.perf_counter(), 0
    for labels, dense, keys in read(files):
        labels_t, dense_t, keys_t = torch.from_numpy(labels), torch.from_numpy(dense), torch.from_numpy(keys)
        for at in range(0, len(labels), batch):
            adam.zero_grad()
            sparse.zero_grad()
            out = net(dense_t[at : at + batch], keys_t[at : at + batch])
            functional.cross_entropy(out, labels_t[at : at + batch], reduction="sum").backward()
            adam.step()
            sparse.step()
            rows += len(out)
    return rows / (time.perf_counter() - begin)


if __name__ == "__main__":
    torch.set_flush_denormal(True)  # before torch's threads are made: they take it over
    torch.set_num_threads(2)
    print(train(sorted(str(p) for p in Path(sys.argv[1]).iterdir()), int(sys.argv[2])))
