"""Does torch's own bfloat16 work here? On some virtual machines it does not, whatever the processor says of itself."""

from __future__ import annotations

from functools import cache

import torch

# Small, and yet above what torch does without its library of kernels (oneDNN), which is what fails.
_ROWS, _WIDTH = 64, 64


@cache
def torch_bf16_error() -> str | None:
    """What a linear layer in bfloat16 raises, forward or backward; None: it works. Tried once a process."""
    try:
        layer = torch.nn.Linear(_WIDTH, _WIDTH, dtype=torch.bfloat16)
        x = torch.ones(_ROWS, _WIDTH, dtype=torch.bfloat16, requires_grad=True)
        layer(x).sum().backward()
    except RuntimeError as error:  # such as "could not create a primitive"
        return str(error).splitlines()[0]
    return None
