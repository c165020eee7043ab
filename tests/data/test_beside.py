"""The schema beside data is honoured by whoever reads it: `schema_beside`, MultiSlotCTR, examples/ctr/train.py."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

import sparsefleet as sf
from sparsefleet.applications import MultiSlotCTR
from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.core.schema import CRITEO

TRAIN = Path(__file__).parents[2] / "examples" / "ctr" / "train.py"
OWN = sf.Schema(
    dense=tuple(sf.DenseFeature(feature.name, feature.minimum + 1, feature.diff * 2) for feature in CRITEO.dense),
    slots=CRITEO.slots,
    sparse_feature_dim=5003,
)


@pytest.fixture
def prepared(clicks: Path, tmp_path: Path) -> Path:
    """As `data prepare` leaves data: train/, test/ and a schema of measured constants."""
    for part in ("train", "test"):
        shutil.copytree(clicks / part, tmp_path / "data" / part)
    OWN.save(tmp_path / "data" / "schema.json")
    return tmp_path / "data"


def test_where_it_is_looked_for(prepared: Path, tmp_path: Path) -> None:
    train = prepared / "train"
    for data in (prepared, train, train / "part-0", train / "part-*", str(train), f"file://{train}"):
        assert sf.schema_beside(data) == OWN
    assert sf.schema_beside(sf.list_files(train)) == OWN
    assert sf.schema_beside([f"{train}/part-0#bytes=0:100"]) == OWN
    assert sf.schema_beside(tmp_path / "elsewhere" / "deep" / "part-0") == CRITEO
    assert sf.schema_beside(tmp_path / "elsewhere" / "deep", otherwise=OWN.folded(7)).sparse_feature_dim == 7
    with pytest.raises(DataError, match="no input files were given"):
        sf.schema_beside([])
    (prepared / "schema.json").write_text("{")
    with pytest.raises(ConfigError, match=r"schema\.json: not JSON"):
        sf.schema_beside(train)


def test_the_ready_application_goes_by_it(prepared: Path, clicks: Path) -> None:
    model = MultiSlotCTR()
    assert model.load_criteo_from_file(prepared / "train").schema == OWN
    (prepared / "schema.json").unlink()
    assert model.load_criteo_from_file(prepared / "train").schema == CRITEO
    sf.Schema((), (sf.Slot("user"),)).save(prepared / "schema.json")
    with pytest.raises(ConfigError, match="has 0 dense features and 1 slots; Criteo's data has 13 and 26"):
        model.load_criteo_from_file(prepared / "train")


def test_the_example_goes_by_it(prepared: Path, children) -> None:
    out = prepared.parent / "model"
    script = f"import runpy, sys; sys.argv = {[str(TRAIN), '--data', str(prepared / 'test'), '--save', str(out)]!r}; "
    script += f"sys.path.insert(0, {str(TRAIN.parent)!r}); runpy.run_path({str(TRAIN)!r}, run_name='__main__')"
    runner = prepared.parent / "runner.py"
    runner.write_text(script)
    done = children.run(module="runner", env={"PYTHONPATH": f"{runner.parent}:{':'.join(sys.path)}"})
    assert done.returncode == 0, done.stderr
    saved = json.loads((out / "manifest.json").read_text())["schema"]
    assert saved == json.loads(json.dumps(OWN.to_dict()))
