"""The hot keys of a bundle: what training met most often, the most frequent first."""

import json
import zlib

import numpy as np
import pytest

from sparsefleet.core.errors import BundleError
from sparsefleet.core.table_rows import TableRows
from sparsefleet.export import Bundle
from sparsefleet.export import hot as hot_keys
from sparsefleet.export.hot import HotKeys, hot_path, parse_hot_keys


def rows_of(keys, seen):
    count = len(keys)
    none = np.zeros((count, 0), np.float32)
    return TableRows(np.array(keys, np.uint64), np.zeros((count, 2), np.float32), none, np.array(seen, np.uint32))


def keys_of(chunks, min_seen=0):
    hot = HotKeys(min_seen)
    assert len(list(hot.watch(iter(chunks)))) == len(chunks)
    return parse_hot_keys(hot.to_bytes(), "here").tolist()


def test_the_most_frequent_stand_first(monkeypatch):
    chunks = [rows_of([5, 1, 9, 2**63], [3, 1, 7, 4_000_000_000]), rows_of([], []), rows_of([7, 3], [7, 2])]
    assert keys_of(chunks) == [2**63, 7, 9, 5, 3]  # equal ones by their keys; met once is not often
    assert keys_of(chunks, min_seen=3) == [2**63, 7, 9, 5]
    assert keys_of([]) == []
    monkeypatch.setattr(hot_keys, "HOT_KEYS", 2)
    assert keys_of(chunks) == [2**63, 7]


@pytest.mark.parametrize("data", [b"1234567", bytes(16), bytes(8 * (hot_keys.HOT_KEYS + 1))])
def test_what_is_no_list_of_keys_is_refused(data):
    with pytest.raises(BundleError, match=r"here: (it names a key twice|.* no list of at most)"):
        parse_hot_keys(data, "here")


def test_a_bundle_names_keys_of_its_tables(trained):
    bundle = Bundle.open(trained.bundles[0])
    ((name, keys),) = bundle.hot.items()
    rows, found = bundle.tables[name].lookup(keys)
    assert len(keys)
    assert found.all()
    assert bundle.tables[name].packed(keys).view("<f4").tobytes() == rows.tobytes()
    with pytest.raises(BundleError, match="no row for the key 12345"):
        bundle.tables[name].packed(np.array([12345], np.uint64))


def test_bundles_without_hot_keys_and_with_damaged_ones(trained, tmp_path):
    whole = trained.bundles[0]
    for entry in whole.rglob("*"):
        if entry.is_file():
            (tmp_path / entry.relative_to(whole)).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / entry.relative_to(whole)).write_bytes(entry.read_bytes())
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    path = hot_path(manifest["tables"][0]["name"])
    keys = (tmp_path / path).read_bytes()
    (tmp_path / path).write_bytes(keys[::-1])
    with pytest.raises(BundleError, match="its checksum is"):
        Bundle.open(tmp_path)
    (tmp_path / path).write_bytes(keys[:8] + keys[:-8])
    entry = next(one for one in manifest["files"] if one["path"] == path)
    entry["checksum"] = f"crc32:{zlib.crc32(keys[:8] + keys[:-8]):08x}"
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="names a key twice"):
        Bundle.open(tmp_path)
    manifest["files"].remove(entry)
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert Bundle.open(tmp_path).hot == {}
