"""Whether denormals (float32: below 1.2e-38) are zero in the calling thread: a setting of its processor.

Native kernels see to it themselves (`native/include/sparsefleet/float_mode.h`). This is for what else computes with
parameters: NumPy, a model's torch operations, ONNX Runtime.
"""

from __future__ import annotations

from types import TracebackType

import sparsefleet.kernels._native as _native


class flushed:
    """Denormals are zero inside, in this thread; afterwards they are what they were.

    Do not read data inside: Python's own `float("1e-310")` would be 0. And keep it short of a whole thread's life: a
    user's generators and handlers run there too.
    """

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before: int = _native.get_flush_bits()
        _native.set_flush_bits(_native.flush_bits)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _native.set_flush_bits(self._before)


def denormals_are_zero() -> bool:
    """In the calling thread, now."""
    return bool(_native.get_flush_bits())
