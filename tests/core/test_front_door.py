"""`import sparsefleet as sf`: the public face. Whoever changes it changes the list here, and decides to."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import sparsefleet as sf

ROOT = Path(__file__).parents[2]
STUB = ROOT / "src" / "sparsefleet" / "__init__.pyi"

MODULES = ["applications", "data", "fleet", "fluid", "metrics", "models", "nn", "optim", "verify"]
NAMES = [
    "BadRowError",
    "Batch",
    "Bundle",
    "BundleError",
    "CRITEO",
    "CTRDNN",
    "CTRDNNConfig",
    "Checkpoint",
    "CheckpointError",
    "ConfigError",
    "CsvDialect",
    "DataError",
    "DatasetFactory",
    "DenseFeature",
    "DivergedError",
    "Feeder",
    "FetchHandler",
    "FitResult",
    "InMemoryDataset",
    "JsonLinesReporter",
    "Label",
    "LocalStore",
    "MultiSlotDataGenerator",
    "MultiSlotStringDataGenerator",
    "ParameterStore",
    "Predictor",
    "PyReader",
    "QueueDataset",
    "Reader",
    "Rebuildable",
    "RedisSource",
    "Reporter",
    "SavePolicy",
    "Schema",
    "Slot",
    "SparseFleetError",
    "SparseSource",
    "StoreError",
    "SynthSpec",
    "TensorBoardReporter",
    "TrainConfigs",
    "Trainer",
    "Validation",
    "WordVectors",
    "attach",
    "console_reporter",
    "export_checkpoint",
    "export_model",
    "latest_checkpoint",
    "list_files",
    "open_reader",
    "parse_train_configs",
    "plain_errors",
    "publish",
    "saved_model",
    "schema_beside",
    "stable_hash",
    "synth",
]


def test_these_are_the_public_names():
    assert dir(sf) == sf.__all__ == sorted([*MODULES, *NAMES, "__version__"])


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_what_it_is_at_home(name):
    home = import_module(f"sparsefleet.{sf._HOMES[name]}")
    assert getattr(sf, name) is getattr(home, {"latest_checkpoint": "latest"}.get(name, name))


def test_modules_are_modules():
    for name in MODULES:
        assert getattr(sf, name) is sys.modules[f"sparsefleet.{name}"]
    from sparsefleet import fleet  # what scripts have always written

    assert fleet is sf.fleet
    assert fleet.is_initialized() in (True, False)


def test_a_name_that_is_none():
    with pytest.raises(AttributeError, match=r"'sparsefleet' has no attribute 'Trainr'; docs/api\.md lists"):
        sf.Trainr  # noqa: B018


def loaded_after(script: str, *options: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, *options, "-c", f"{script}\nimport sys; print(*sys.modules)"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return set(done.stdout.split())


HEAVY = {"torch", "numpy", "pyarrow", "rich", "typer", "asyncio"}


def test_importing_it_loads_nothing_else():
    """Found by its folder, without `site`: the finder of an editable install loads modules of its own."""
    found = f"import sys; sys.path.insert(0, {str(Path(sf.__file__).parents[1])!r})\n"
    added = loaded_after(found + "import sparsefleet as sf; dir(sf)", "-S") - loaded_after("", "-S")
    assert added == {"sparsefleet"}


def test_a_data_generator_loads_nothing_heavy():
    added = loaded_after("import sparsefleet as sf; sf.MultiSlotDataGenerator; sf.stable_hash('x')")
    assert not added & (HEAVY | {"typing"})


def test_a_predictor_needs_no_torch():
    assert "torch" not in loaded_after("import sparsefleet as sf; sf.Predictor; sf.Schema; sf.RedisSource; sf.publish")


def test_the_stub_says_the_same():
    """mypy checks that what the stub imports exists; here, that it is what `__getattr__` loads."""
    homes: dict[str, str] = {}
    listed: list[str] = []
    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                homes[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Assign):
            listed = ast.literal_eval(node.value)
    wanted = {name: f"sparsefleet.{home}.{sf._OTHER_NAMES.get(name, name)}" for name, home in sf._HOMES.items()}
    assert homes == {**wanted, **{name: f"sparsefleet.{name}" for name in MODULES}}
    assert sorted(listed) == sf.__all__
    assert (STUB.parent / "py.typed").exists()


def test_every_name_is_documented_and_nothing_else():
    page = (ROOT / "docs" / "api.md").read_text()
    named = set(re.findall(r"`sf\.(\w+)`", page))
    assert named == {*MODULES, *NAMES}


def test_examples_and_documents_use_the_front_door_only():
    # Modules whose names are public too may be imported as scripts of Fluid and Fleet import theirs.
    inner = re.compile(
        r"^\s*(?:from sparsefleet\.(?!fleet import )\S+ import .*"
        rf"|import sparsefleet\.(?!(?:{'|'.join(MODULES)}) as ).*)$",
        re.MULTILINE,
    )
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").rglob("*.py"))]
    found = [f"{page.name}: {line.strip()}" for page in pages for line in inner.findall(page.read_text())]
    assert not found
    for page in pages:
        for line in re.findall(r"^\s*from sparsefleet import (.*)$", page.read_text(), re.MULTILINE):
            assert {name.strip() for name in line.split(",")} <= {*MODULES, *NAMES}, page.name
        for line in re.findall(r"^\s*from sparsefleet\.fleet import (.*)$", page.read_text(), re.MULTILINE):
            assert {name.strip() for name in line.split(",")} <= set(dir(sf.fleet)), page.name
