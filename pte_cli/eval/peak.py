"""The most memory this process has held."""

from __future__ import annotations

import resource
import sys

import torch


def peak_bytes() -> int:
    """Peak bytes so far: of the accelerator's tensors where there is one, else of the whole process (resident set)."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    # Linux counts in KiB, macOS in bytes (getrusage(2)).
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
