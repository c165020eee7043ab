"""Hot kernels: `text` (hashing, parsing), `rows` (unique keys, pooling, metrics), `tower` (dense layers), `table`
(tables, update rules), `bundle_rows` (search in mapped files), `request` (requests and answers).

Each module is a thin, typed face over `_native`; its readable NumPy twin stands in `reference/` under the same name,
with the same functions, and the same tests run both. The GIL is released in native kernels, but for those that
are over in microseconds.
"""
