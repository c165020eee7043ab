"""Hot kernels: `text` (hashing, parsing), `rows` (unique keys, pooling, metrics), `tower` (dense layers), `table`
(tables, update rules). Kernels with one user stand beside that user: `export/kernels` and `serving/kernels`.

Each module is a thin, typed face over `_native`. Its readable NumPy twin stands in `reference/` under the same name,
with the same functions, and the same tests run both. Native kernels release the GIL, except those that end within
microseconds and those that read Python objects.
"""
