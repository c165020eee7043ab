"""Sparse tables: rows/s of create, pull and push, bytes a row, beside a plain C++ loop over an array; the cost of cuts.

    python benchmarks/tables.py [--rows 10000000] [--dim 10] [--rule adam]

Figures of one machine are in tables.md.

The ceiling is what the machine can do with random rows when there is nothing to find and nothing to lock: row
numbers are known, rows lie in one array of huge pages, each is prefetched ahead of its turn. It needs a C++
compiler.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sparsefleet import optim
from sparsefleet.table import SparseTable, TableSpec

CEILING = r"""
#include <sys/mman.h>
#include <cmath>
#include <cstdint>
#include <cstring>
constexpr std::size_t D = DIM, W = 3 * DIM, AHEAD = 24;
static float* rows;
static void ahead(const float* row, std::size_t floats) {
    for (std::size_t i = 0; i < floats; i += 16) __builtin_prefetch(row + i, 1);
}
extern "C" void make(std::size_t n) {
    const std::size_t bytes = (n * W * 4 + (4u << 20)) & ~((2ull << 20) - 1);
    const int kind = MAP_PRIVATE | MAP_ANONYMOUS;
    rows = static_cast<float*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kind, -1, 0));
    madvise(rows, bytes, MADV_HUGEPAGE);
    for (std::size_t i = 0; i < n * W; ++i) rows[i] = 0.01f;
}
extern "C" void pull(const std::uint64_t* at, std::size_t n, float* out) {
    for (std::size_t i = 0; i < n; ++i) {
        if (i + AHEAD < n) ahead(rows + at[i + AHEAD] * W, D);
        std::memcpy(out + i * D, rows + at[i] * W, D * 4);
    }
}
extern "C" void push(const std::uint64_t* at, std::size_t n, const float* grads) {
    for (std::size_t i = 0; i < n; ++i) {
        if (i + AHEAD < n) ahead(rows + at[i + AHEAD] * W, W);
        float *w = rows + at[i] * W, *m = w + D, *v = m + D;
        const float* g = grads + i * D;
        for (std::size_t j = 0; j < D; ++j) {
            m[j] += 0.1f * (g[j] - m[j]);
            v[j] = 0.999f * v[j] + 0.001f * g[j] * g[j];
            w[j] -= 0.001f * m[j] / (std::sqrt(v[j]) + 1e-8f);
        }
    }
}
"""


def compiled_ceiling(rows: int, dim: int, folder: str) -> ctypes.CDLL:
    source, library = Path(folder, "ceiling.cpp"), Path(folder, "ceiling.so")
    source.write_text(CEILING)
    flags = ["-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-shared", "-fPIC", f"-DDIM={dim}"]
    subprocess.run(["c++", *flags, str(source), "-o", str(library)], check=True)
    ceiling = ctypes.CDLL(str(library))
    ceiling.make(ctypes.c_size_t(rows))
    return ceiling


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def rate(work: Callable[[np.ndarray], object], batches: list[np.ndarray], repeats: int = 5) -> float:
    """Million rows a second of processor time: the best of several rounds, other processes left out."""
    best = float("inf")
    for _ in range(repeats):
        start = time.thread_time()
        for batch in batches:
            work(batch)
        best = min(best, time.thread_time() - start)
    return sum(map(len, batches)) / best / 1e6


def cost_of_cuts(table: SparseTable, batches: list[np.ndarray], grads: np.ndarray) -> None:
    """Pushes of the same rows without a cut, with one (each row is copied aside once), and again (all are aside)."""

    def nanoseconds() -> float:
        start = time.thread_time()
        for batch in batches:
            table.push(batch, grads[: len(batch)])
        return (time.thread_time() - start) / sum(map(len, batches)) * 1e9

    begin, plain, first, again, memory = [], [], [], [], []
    for _ in range(7):
        nanoseconds()
        plain.append(nanoseconds())
        before, start = table.memory_bytes, time.perf_counter()
        with table.begin_cut():
            begin.append(time.perf_counter() - start)
            first.append(nanoseconds())
            memory.append(table.memory_bytes - before)
            again.append(nanoseconds())
    touched = len(np.unique(np.concatenate(batches)))
    aside = min(memory) / touched
    print(f"cut      begun in {min(begin) * 1e6:.0f} us; {aside:.0f} bytes aside for each row changed")
    print(
        f"push     {min(plain):.0f} ns a row without a cut; with one {min(first):.0f} the first time, "
        f"{min(again):.0f} ({min(again) / min(plain):.2f}) after that"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--dim", type=int, default=10)
    parser.add_argument("--rule", choices=list(optim.RULES), default="adam")
    options = parser.parse_args()
    rows, dim = options.rows, options.dim

    rule = optim.by_name(options.rule, 1e-3)
    table = SparseTable(TableSpec("bench", dim, rule))
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 2**64, rows, dtype=np.uint64)
    start = time.thread_time()
    for first in range(0, rows, 26_000):
        table.pull(keys[first : first + 26_000])
    created = table.rows / (time.thread_time() - start) / 1e6
    needed = 8 + 8 + 4 * dim + 4 * rule.state_width(dim)
    taken = table.memory_bytes / table.rows
    print(f"{table.rows:,} rows x {dim} floats, {rule.name}; one thread; million rows/s")
    print(f"memory   {taken:.1f} bytes/row = {taken / needed:.3f} x (head + values + state = {needed})")
    print(f"create   {created:.1f}")
    few = [keys[rng.permutation(np.unique(rng.integers(0, rows, 2_600)))] for _ in range(200)]
    cost_of_cuts(table, few, rng.standard_normal((2_600, dim)).astype(np.float32) * np.float32(0.01))
    print(f"{'keys/call':>9} {'pull':>7} {'push':>7}   ceiling (adam): {'pull':>7} {'push':>7}")
    with tempfile.TemporaryDirectory() as folder:
        try:
            ceiling = compiled_ceiling(rows, dim, folder)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"no ceiling: {error}")
            ceiling = None
        for size in (260, 2_600, 6_656, 26_000):
            numbers = [np.unique(rng.integers(0, rows, size, dtype=np.uint64)) for _ in range(2_000_000 // size)]
            numbers = [rng.permutation(batch) for batch in numbers]
            batches = [keys[batch] for batch in numbers]
            grads = rng.standard_normal((size, dim)).astype(np.float32) * np.float32(0.01)
            out = np.empty((size, dim), np.float32)
            cells = [
                rate(lambda k: table.pull(k, create=False), batches),
                rate(lambda k, g=grads: table.push(k, g[: len(k)]), batches),
            ]
            if ceiling is not None:
                cells += [
                    rate(
                        lambda n, o=out: ceiling.pull(pointer(n), ctypes.c_size_t(len(n)), pointer(o)),
                        numbers,
                    ),
                    rate(
                        lambda n, g=grads: ceiling.push(pointer(n), ctypes.c_size_t(len(n)), pointer(g)),
                        numbers,
                    ),
                ]
            print(
                f"{size:>9,} {cells[0]:>7.1f} {cells[1]:>7.1f}" + " " * 19 + " ".join(f"{c:>7.1f}" for c in cells[2:])
            )


if __name__ == "__main__":
    main()
