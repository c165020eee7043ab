"""The dense network alone in one arrangement of the cores: prints rows per second."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from parts.warm import warm_memory
from peers.dense_ceiling import ARRANGEMENTS

if __name__ == "__main__":
    warm_memory()
    print(ARRANGEMENTS[sys.argv[1]](int(sys.argv[2]), float(sys.argv[3]), bf16=sys.argv[4] == "bf16"))
