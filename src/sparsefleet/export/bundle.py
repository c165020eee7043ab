"""Bundle: an opened bundle. Its description has been checked and its rows files are mapped. Needs no torch."""

from __future__ import annotations

import os
import re
import stat
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sparsefleet.core.batch import U64
from sparsefleet.core.errors import BundleError, ConfigError
from sparsefleet.core.inputs import Inputs
from sparsefleet.core.json_fields import document, encodes
from sparsefleet.core.schema import Schema
from sparsefleet.export import manifest as manifests
from sparsefleet.export.hot import HOT_KEYS, hot_path, parse_hot_keys
from sparsefleet.export.kernels.bundle_rows import RowType
from sparsefleet.export.manifest import BundleFile, BundleManifest, BundleTable, NetworkInfo
from sparsefleet.export.profile import Profile, parse_profile
from sparsefleet.export.remote import fetch_bundle, shown
from sparsefleet.export.rows_file import RowsFile, RowsHeader
from sparsefleet.export.warm_up import WarmUp, parse_warm_up

MAX_GRAPH_BYTES = 2 << 30
"""What one protobuf message can hold."""
REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""A URI, or what `Path` has made of one: s3:/bucket/v1."""


@dataclass(frozen=True, slots=True)
class Bundle:
    path: Path
    manifest: BundleManifest
    schema: Schema
    network: NetworkInfo
    graph: bytes
    """The ONNX model."""
    tables: Mapping[str, RowsFile]
    """Empty where the bundle was opened without its rows."""
    warm_up: WarmUp | None = None
    """Samples with the scores that they must get; None in bundles of older releases."""
    profile: Profile | None = None
    """How the training's samples are spread; None where whoever exported gave none."""
    hot: Mapping[str, U64] = field(default_factory=dict)
    """By table the keys that training met most often; none in bundles of older releases."""
    origin: str = ""
    """Where it came from, for people: a path, or a URI without its keys."""

    @staticmethod
    def open(path: str | os.PathLike[str], *, full: bool = False, rows: bool = True) -> Bundle:
        """Open and check a bundle; with `full`, read and check all rows too.

        One behind a URI is fetched into the local cache first. `rows=False`: its rows are elsewhere (in Redis), so the
        rows files are not looked at and need not be there.
        """
        text = os.fspath(path)
        remote = is_remote(text)
        folder = fetch_bundle(text, rows=rows) if remote else local_path(text)
        manifest = manifests.parse_manifest(_manifest_bytes(folder), str(folder / manifests.MANIFEST))
        left_out = set() if rows else {table.path for table in manifest.tables}
        for entry in manifest.files:
            if entry.path not in left_out:
                _check_size(folder, entry)
        small = {
            name: _read(folder, manifest.file(name), limit)
            for name, limit in (
                (manifests.NETWORK, manifests.MAX_BYTES),
                (manifests.SCHEMA, manifests.MAX_BYTES),
                (manifests.GRAPH, MAX_GRAPH_BYTES),
            )
        }
        where = str(folder / manifests.SCHEMA)
        try:
            schema = Schema.from_dict(document(small[manifests.SCHEMA], where, BundleError), where)
        except ConfigError as error:
            raise BundleError(str(error)) from error
        except (TypeError, AttributeError, ValueError) as error:
            raise BundleError(f"{where}: a field is mistyped: {error}") from error
        _check_schema_types(schema, where)
        network = manifests.parse_network(small[manifests.NETWORK], str(folder / manifests.NETWORK))
        bundle = Bundle(
            path=folder,
            manifest=manifest,
            schema=schema,
            network=network,
            graph=small[manifests.GRAPH],
            tables={table.name: _open_rows(folder, table, manifest) for table in manifest.tables if rows},
            origin=shown(text) if remote else str(folder),
        )
        bundle._check_together()
        bundle = replace(
            bundle,
            warm_up=_warm_up(folder, manifest, schema, network),
            profile=_profile(folder, manifest, schema),
            hot=_hot(folder, manifest),
        )
        if full and rows:
            bundle.check_rows()
        return bundle

    @property
    def name(self) -> str:
        """The model's version."""
        return self.manifest.name

    @property
    def labels(self) -> tuple[str, ...]:
        """What the network predicts, by name; the first is what a plain score is of."""
        return tuple(name for name, _ in self.network.labels) or (self.schema.label,)

    @property
    def inputs(self) -> Inputs | None:
        """What a request has to hold; None: not known."""
        return self.manifest.inputs

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.manifest.files)

    def check_rows(self) -> None:
        """Read every rows file: check its checksum, and that a search finds every key."""
        for table in self.manifest.tables:
            rows, entry = self.tables[table.name], self.manifest.file(table.path)
            found = rows.checksum()
            if found != entry.checksum:
                raise _damaged(rows.path, found, entry)
            if not rows.ordered():
                raise BundleError(f"{rows.path}: damaged: its keys are not in the order that searches rely on")

    def _check_together(self) -> None:
        where, slots = str(self.path / manifests.NETWORK), self.schema.slot_names
        for embedding in self.network.embeddings:
            missing = [name for name in embedding.slots if name not in slots]
            if missing:
                raise BundleError(
                    f"{where}: the embedding {embedding.input!r} is over slot {', '.join(map(repr, missing))}; the "
                    f"schema has {', '.join(slots)}: files of two bundles?"
                )
            table = next((one for one in self.manifest.tables if one.name == embedding.table), None)
            if table is None or table.dim != embedding.dim:
                has = "there is no such table" if table is None else f"that table's rows have {table.dim} values"
                raise BundleError(
                    f"{where}: the embedding {embedding.input!r} reads {embedding.dim} values a row from table "
                    f"{embedding.table!r}; {has}"
                )
        if self.inputs is not None and set(self.inputs.slots) - set(slots):
            raise BundleError(
                f"{self.path / manifests.MANIFEST}: its inputs are of slots that the schema does not have: "
                "files of two bundles?"
            )
        dense = self.network.dense
        if dense is not None and dense.features != len(self.schema.dense):
            raise BundleError(
                f"{where}: the network takes {dense.features} dense features; the schema has {len(self.schema.dense)}"
            )


def _warm_up(folder: Path, manifest: BundleManifest, schema: Schema, network: NetworkInfo) -> WarmUp | None:
    if not any(entry.path == manifests.WARM_UP for entry in manifest.files):
        return None
    data = _read(folder, manifest.file(manifests.WARM_UP), manifests.MAX_BYTES)
    return parse_warm_up(data, schema, network, str(folder / manifests.WARM_UP))


def _profile(folder: Path, manifest: BundleManifest, schema: Schema) -> Profile | None:
    if not any(entry.path == manifests.PROFILE for entry in manifest.files):
        return None
    data = _read(folder, manifest.file(manifests.PROFILE), manifests.MAX_BYTES)
    return parse_profile(data, schema, str(folder / manifests.PROFILE))


def _hot(folder: Path, manifest: BundleManifest) -> dict[str, U64]:
    listed, hot = {entry.path: entry for entry in manifest.files}, {}
    for table in manifest.tables:
        path = hot_path(table.name)
        if path in listed:
            hot[table.name] = parse_hot_keys(_read(folder, listed[path], 8 * HOT_KEYS), str(folder / path))
    return hot


def _check_schema_types(schema: Schema, where: str) -> None:
    """Check the types of all fields: `Schema` does not, and a wrong one would fail later."""
    numbers = [number for feature in schema.dense for number in (feature.minimum, feature.diff)]
    texts = [feature.name for feature in schema.dense] + [slot.name for slot in schema.slots] + [schema.label]
    texts += [slot.hash_prefix for slot in schema.slots if slot.hash_prefix is not None]
    whole = [schema.sparse_feature_dim, schema.hash_seed]
    if (
        not all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers)
        or not all(isinstance(text, str) and encodes(text) for text in texts)
        or not all(isinstance(number, int) and not isinstance(number, bool) and number < 2**64 for number in whole)
        or not schema.slots
    ):
        raise BundleError(f"{where}: a name is not text, a number not a number, or there are no slots")


def _open_rows(folder: Path, table: BundleTable, manifest: BundleManifest) -> RowsFile:
    rows = RowsFile(folder / table.path)
    dtype = RowType[table.dtype.upper()]
    expected = RowsHeader.of(dtype, table.dim, table.rows, manifest.id, table.name)
    found = rows.header
    if found.bundle_id != expected.bundle_id:
        raise BundleError(
            f"{rows.path}: it belongs to bundle {found.bundle_id.hex()}, not to this one ({manifest.id}): files of two "
            "bundles?"
        )
    if found.table_hash != expected.table_hash:
        raise BundleError(f"{rows.path}: it holds another table than {table.name!r}: files swapped?")
    if (found.dtype, found.dim, found.rows) != (dtype, table.dim, table.rows):
        raise BundleError(
            f"{rows.path}: {found.rows} rows of {found.dim} {found.dtype.name.lower()}; the manifest says "
            f"{table.rows} of {table.dim} {table.dtype}"
        )
    return rows


def _manifest_bytes(folder: Path) -> bytes:
    path = folder / manifests.MANIFEST
    try:
        with path.open("rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BundleError(f"{path}: not a regular file")
            return file.read(manifests.MAX_BYTES + 1)
    except FileNotFoundError:
        hint = _hint(folder)
        raise BundleError(f"no bundle at {folder}: it holds no {manifests.MANIFEST}{hint}") from None
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror or error}") from error


def _hint(folder: Path) -> str:
    if not folder.is_dir():
        return "; there is no such directory"
    if any(re.fullmatch(r"step-\d+", entry.name) for entry in folder.iterdir()):
        return "; it is a run's folder of checkpoints: `sparsefleet export` makes a bundle of one"
    return ", so it is none, or half written or half copied"


def _check_size(folder: Path, entry: BundleFile) -> None:
    path = folder / entry.path
    try:
        found = path.stat()
    except OSError as error:
        thin = (
            "half copied, or a thin bundle, which is served with --sparse redis://…" if "sparse/" in entry.path else ""
        )
        raise BundleError(
            f"{path}: {error.strerror or error}; the manifest lists it with {entry.bytes} bytes: "
            f"{thin or 'half copied'}?"
        ) from error
    real, root = os.path.realpath(path), os.path.realpath(folder)
    if os.path.commonpath([real, root]) != root:
        raise BundleError(f"{path}: it leads out of the bundle's directory")
    if not stat.S_ISREG(found.st_mode):
        raise BundleError(f"{path}: not a regular file")
    if found.st_size != entry.bytes:
        raise BundleError(f"{path}: {found.st_size} bytes; the manifest says {entry.bytes}: damaged or half copied")


def _read(folder: Path, entry: BundleFile, limit: int) -> bytes:
    path = folder / entry.path
    if entry.bytes > limit:
        raise BundleError(f"{path}: {entry.bytes} bytes; at most {limit} are allowed")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror or error}") from error
    found = f"crc32:{zlib.crc32(data):08x}"
    if found != entry.checksum:
        raise _damaged(path, found, entry)
    return data


def _damaged(path: Path, found: str, entry: BundleFile) -> BundleError:
    return BundleError(f"{path}: damaged: its checksum is {found}; the manifest says {entry.checksum}")


def local_path(path: str | os.PathLike[str]) -> Path:
    """Where a bundle is; a BundleError for what cannot be a local path."""
    text = os.fspath(path)
    if not text or "\0" in text:
        raise BundleError(f"{text!r:.200} is not a path")
    if text.startswith("file://"):
        text = unquote(urlsplit(text).path)
    elif REMOTE.match(text):
        raise BundleError(f"{text!r:.200}: a URI has two slashes after the colon (and is no `Path`, which joins them)")
    return Path(os.path.abspath(os.path.expanduser(text)))


def is_remote(text: str) -> bool:
    """Whether this is the URI of something that is not on this machine's disks."""
    if "\0" in text:
        raise BundleError(f"{text!r:.200} is not a path")
    return "://" in text and REMOTE.match(text) is not None and not text.startswith("file://")
