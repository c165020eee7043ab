"""The wheel's compiled code against a module built for this very machine (-march=native, the system's compiler).

    python benchmarks/wheel.py [WHEEL] [--rounds 15]   without WHEEL, one is built first

Both are installed into temporary folders. One process of each stays up; they are asked in turn for the same piece of
work and tell the processor seconds it took, so that what else the machine does meets both alike. The ratio is the
median over pairs: above 1 the wheel is faster. What was found is written down in benchmarks/wheel.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))

from parts.common import criteo_files

ROOT = Path(__file__).resolve().parents[1]
WANTED = 0.97


def install(what: Path, target: Path, *settings: str) -> Path:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", f"--target={target}"]
    subprocess.run([*pip, *(f"--config-settings={setting}" for setting in settings), what], check=True)
    return target


class Install:
    """A process that runs one install's kernels."""

    def __init__(self, folder: Path, data: Path) -> None:
        # Without `site` (-S) nothing of this environment's own install of the package gets in between.
        paths = os.pathsep.join([str(folder), *filter(None, sys.path)])
        self._process = subprocess.Popen(
            [sys.executable, "-S", ROOT / "benchmarks" / "parts" / "wheel_child.py", folder, data],
            env={**os.environ, "PYTHONPATH": paths, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.level, *self.parts = self._answer().split("\t")

    def _answer(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline().strip()
        if not line:
            raise RuntimeError("a measuring process ended; its error stands above")
        return line

    def seconds(self, part: str) -> float:
        assert self._process.stdin
        self._process.stdin.write(part + "\n")
        self._process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=10)


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    arguments.add_argument("wheel", nargs="?", type=Path, help="default: build one for this Python")
    arguments.add_argument("--rounds", type=int, default=15, help="pairs a part")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder, wheel = Path(temporary), given.wheel
        if wheel is None:
            build = [sys.executable, ROOT / "scripts" / "wheel.py", f"--python={sys.executable}", f"--out={folder}"]
            subprocess.run(build, check=True)
            (wheel,) = folder.glob("sparsefleet-*.whl")
        native = (f"build-dir={folder / 'build'}", "cmake.define.SPARSEFLEET_NATIVE_ARCH=ON")
        data = criteo_files(folder, 20_000)
        installs = [
            Install(install(wheel, folder / "wheel"), data),
            Install(install(ROOT, folder / "native", *native), data),
        ]
        try:
            table = Table("part", "wheel", "native", "ratio", "", title=f"{wheel.name} at level {installs[0].level}")
            for part in installs[0].parts:
                for one in installs:
                    one.seconds(part)  # warm
                # Who begins changes from pair to pair.
                pairs = []
                for number in range(given.rounds):
                    order = (0, 1) if number % 2 else (1, 0)
                    taken = {which: installs[which].seconds(part) for which in order}
                    pairs.append((taken[0], taken[1]))
                ours, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
                ratio = statistics.median(native / wheel for wheel, native in pairs)
                mark = "[green]yes[/]" if ratio >= WANTED else "[red]no[/]"
                table.add_row(part, f"{ours * 1e3:.1f} ms", f"{theirs * 1e3:.1f} ms", f"{ratio:.3f}", mark)
            Console(width=110).print(table)
        finally:
            for one in installs:
                one.close()


if __name__ == "__main__":
    main()
