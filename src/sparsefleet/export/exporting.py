"""Makes a bundle of a checkpoint, or of a running job's store."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import nn

import sparsefleet
from sparsefleet.checkpoint import AnyPath, Checkpoint, chosen
from sparsefleet.checkpoint.draft import CheckpointDraft, begin
from sparsefleet.checkpoint.manifest import now
from sparsefleet.core.errors import BundleError, CheckpointError, ConfigError
from sparsefleet.core.inputs import Inputs
from sparsefleet.core.json_fields import MAX_TEXT
from sparsefleet.core.schema import Schema
from sparsefleet.data.base import Reader
from sparsefleet.export import manifest as manifests
from sparsefleet.export.bundle import is_remote, local_path
from sparsefleet.export.hot import HotKeys, hot_path
from sparsefleet.export.kernels.bundle_rows import RowType
from sparsefleet.export.manifest import BundleFile, BundleManifest, BundleTable, Lineage, Origin
from sparsefleet.export.network import Network, export_network
from sparsefleet.export.profile import Profile, make_profile
from sparsefleet.export.remote import RemoteFolder, check_free, put_bundle, shown
from sparsefleet.export.rows_alone import require_rows_alone
from sparsefleet.export.rows_file import RowsFile, RowsHeader
from sparsefleet.export.rows_writer import RowsWriter, count_rows
from sparsefleet.export.warm_up import make_warm_up
from sparsefleet.models import registry
from sparsefleet.nn.embedding import tables as tables_of
from sparsefleet.store.base import ParameterStore, RunFacts


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote."""

    path: Path | str
    """A local folder, or the URI of one (without the keys that may stand in it)."""
    manifest: BundleManifest
    difference: float
    """The largest difference between torch and ONNX Runtime on random inputs."""


@dataclass(frozen=True, slots=True)
class _Options:
    rows: str
    min_seen: int
    name: str | None
    progress: Callable[[str], None]
    lineage: Lineage = field(default_factory=Lineage)
    outputs: tuple[str, ...] | None = None
    seen: Reader | None = None
    seen_as: str = ""

    def __post_init__(self) -> None:
        if self.rows not in manifests.DTYPES:
            raise ConfigError(f"rows={self.rows!r} is not a type of rows; choose {', '.join(manifests.DTYPES)}")
        if self.min_seen < 0:
            raise ConfigError(f"min_seen={self.min_seen} must be 0 or above")
        if self.name is not None and not manifests.NAME.fullmatch(self.name):
            raise ConfigError(f"name={self.name!r:.80}: wanted are 1 to 200 characters, no control characters")


def check_export(out: str | os.PathLike[str], *, rows: str, min_seen: int, name: str | None) -> Path:
    """Where on this machine a bundle with these options would go. Raises if an export would refuse the options."""
    _Options(rows, min_seen, name, lambda what: None)
    if is_remote(os.fspath(out)):
        raise ConfigError(
            f"{shown(os.fspath(out))!r:.200}: a running job writes bundles to a local or shared folder; "
            "`sparsefleet export` puts one behind a URI"
        )
    return _target(out)


def export_checkpoint(
    checkpoint_path: AnyPath,
    out: str | os.PathLike[str],
    *,
    rows: str = "float32",
    min_seen: int = 0,
    model: nn.Module | None = None,
    schema: Schema | None = None,
    name: str | None = None,
    progress: Callable[[str], None] = lambda what: None,
    same_inputs: bool = False,
    lineage: Lineage | None = None,
    outputs: Sequence[str] | None = None,
    seen: Reader | None = None,
    seen_as: str = "",
) -> Exported:
    """Make a bundle of a checkpoint, or of a run's newest one. `out`: a folder, or the URI of one (s3://…).

    `rows`: how values are kept: float32, float16 or int8. `min_seen`: leave out rows that training met fewer times.
    `model`: your own module where the checkpoint does not hold one of the project's. `name`: the version that servers
    tell; by default the checkpoint's step and the start of the bundle's id. `same_inputs`: where the model was trained
    on ready keys and numbers (a pipe_command's), its requests must hold such; with this you vouch that the schema makes
    the same of raw values, and requests may hold those. `lineage`: data, metrics and commit for the manifest.
    `outputs`: the labels that the bundle is to predict, the first of them as its score; what only the others need is
    left out of the network, and so are tables that nothing else looks up. By default all labels.
    `seen`: a reader of samples such as the model was trained on; how they are spread is kept, and servers tell how far
    their requests are from it; `seen_as`: what the bundle calls them, a path for example.
    """
    chosen_ones = None if outputs is None else tuple(outputs)
    options = _Options(rows, min_seen, name, progress, lineage or Lineage(), chosen_ones, seen, seen_as)
    with _placed(out, progress) as place:
        checkpoint = Checkpoint.open(chosen(checkpoint_path)[0])
        inputs = inputs_of(checkpoint)
        if inputs is not None and same_inputs:
            inputs = inputs.vouched()
        network, schema = model_of(checkpoint, model), schema_of(checkpoint, schema)
        return place.finished(_export(checkpoint, network, schema, inputs, place.target, options))


def export_model(
    model: nn.Module,
    source: ParameterStore | AnyPath,
    out: str | os.PathLike[str],
    *,
    rows: str = "float32",
    min_seen: int = 0,
    schema: Schema | None = None,
    name: str | None = None,
    step: int = 0,
    progress: Callable[[str], None] = lambda what: None,
) -> Exported:
    """Make a bundle of your own module, whose tables and dense parameters are in a store or a checkpoint.

    From a store, the moment is that of a checkpoint: nobody may push meanwhile. `schema` may be left out where a
    checkpoint holds it; `step` is told in the manifest where a store is exported.
    """
    if not isinstance(source, ParameterStore):
        return export_checkpoint(
            source, out, rows=rows, min_seen=min_seen, model=model, schema=schema, name=name, progress=progress
        )
    options = _Options(rows, min_seen, name, progress)
    if schema is None:
        raise ConfigError("schema=None: a store does not know what its input looks like; give the reader's schema")
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    buffers = {key: value.detach().numpy() for key, value in model.state_dict().items() if key not in trained}
    with _placed(out, progress) as place:
        target = place.target
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.rows-", dir=target.parent) as folder:
            path = os.path.join(folder, "store")
            store_facts = RunFacts(step=step, schema=schema.to_dict(), model=registry.describe(model), buffers=buffers)
            source.save(path, store_facts)
            checkpoint = Checkpoint.open(path)
            return place.finished(_export(checkpoint, model_of(checkpoint, model), schema, None, target, options))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a bundle is written, and where it goes from there."""

    target: Path
    remote: RemoteFolder | None
    progress: Callable[[str], None]

    def finished(self, done: Exported) -> Exported:
        if self.remote is None:
            return done
        put_bundle(self.target, self.remote, done.manifest.files, self.progress)
        return replace(done, path=self.remote.shown)


@contextmanager
def _placed(out: str | os.PathLike[str], progress: Callable[[str], None]) -> Iterator[_Place]:
    text = os.fspath(out)
    if not is_remote(text):
        yield _Place(_target(out), None, progress)
        return
    remote = check_free(text)
    with tempfile.TemporaryDirectory(prefix="sparsefleet-export-") as folder:
        yield _Place(Path(folder) / "bundle", remote, progress)


def _export(
    checkpoint: Checkpoint, model: nn.Module, given: Schema, inputs: Inputs | None, target: Path, options: _Options
) -> Exported:
    # Numbers that came ready in training come ready in a request too.
    schema = given if inputs is None else inputs.served_schema(given)
    options.progress("network")
    network = export_network(model, schema.slot_names, len(schema.dense), options.outputs, schema.label)
    require_rows_alone(network)
    needed = {entry.table for entry in network.info.embeddings}
    origin = Origin(checkpoint.location.name, checkpoint.manifest.step, checkpoint.manifest.created)
    bundle_id = _bundle_id(checkpoint, schema, inputs, network, options)
    with begin(str(target)) as draft:
        folder = Path(draft.directory.path)
        _write(folder / manifests.GRAPH, network.graph)
        _write(folder / manifests.NETWORK, network.info.to_json())
        _write(folder / manifests.SCHEMA, (json.dumps(schema.to_dict(), indent=1) + "\n").encode())
        tables = []
        for name, users in tables_of(model).items():
            if name not in needed:
                continue
            options.progress(f"table {name}")
            tables.append(_write_table(checkpoint, name, users[0].dim, bundle_id, folder, options))
        files = {table.name: RowsFile(folder / table.path) for table in tables}
        _write(folder / manifests.WARM_UP, make_warm_up(network.graph, network.info, schema, files).to_json())
        small = [manifests.GRAPH, manifests.NETWORK, manifests.SCHEMA, manifests.WARM_UP]
        if options.seen is not None:
            options.progress("profile")
            profile = _profile(options.seen, options.seen_as, network, schema, files)
            _write(folder / manifests.PROFILE, profile.to_json(schema))
            small.append(manifests.PROFILE)
        paths = (*small, *(hot_path(table.name) for table in tables), *(table.path for table in tables))
        manifest = BundleManifest(
            name=options.name or f"step-{origin.step:08d}-{bundle_id[:8]}",
            id=bundle_id,
            checkpoint=origin,
            tables=tuple(tables),
            min_seen=options.min_seen,
            files=tuple(_entry(folder, path) for path in paths),
            created=now(),
            sparsefleet=sparsefleet.__version__,
            inputs=inputs,
            lineage=_lineage(checkpoint, options),
        )
        _commit(draft, manifest)
    return Exported(target, manifest, network.difference)


def _profile(seen: Reader, seen_as: str, network: Network, schema: Schema, tables: Mapping[str, RowsFile]) -> Profile:
    if (seen.schema.slot_names, seen.schema.dense_names) != (schema.slot_names, schema.dense_names):
        raise ConfigError(
            f"seen: samples of slots {', '.join(seen.schema.slot_names)} and {len(seen.schema.dense)} dense features; "
            f"the model has {', '.join(schema.slot_names)} and {len(schema.dense)}"
        )
    with seen.epoch() as epoch:
        return make_profile(seen_as[:MAX_TEXT], epoch.streams[0], network.info, schema, tables)


def _lineage(checkpoint: Checkpoint, options: _Options) -> Lineage:
    manifest = checkpoint.manifest
    settings = {
        "model": dict(manifest.model),
        "tables": {table.name: dict(table.rule) for table in manifest.tables},
        "dense": {block.name: dict(block.rule) for block in manifest.blocks},
    }
    return replace(options.lineage, settings={**settings, **options.lineage.settings})


def _commit(draft: CheckpointDraft, manifest: BundleManifest) -> None:
    data = manifest.to_json()
    # A bundle that cannot be opened must not replace one that can.
    manifests.parse_manifest(data, "the manifest to be written")
    try:
        draft.publish(data)
    except OSError as error:
        raise BundleError(f"cannot write {draft.target}: {error.strerror or error}") from error


def _write_table(
    checkpoint: Checkpoint, name: str, dim: int, bundle_id: str, folder: Path, options: _Options
) -> BundleTable:
    info = checkpoint.manifest.table(name)
    if info.dim != dim:
        raise BundleError(
            f"{checkpoint.location}: table {name!r} was saved with rows of {info.dim} values; the model's have {dim}"
        )
    kept, dropped = checkpoint.row_count(name), 0
    if options.min_seen:
        kept, dropped, most = count_rows(checkpoint.sparse_rows(name, read_state=False), options.min_seen)
        if dropped and not kept:
            raise BundleError(
                f"min_seen={options.min_seen} leaves no row of table {name!r}: training met each of its {dropped:,} "
                f"rows at most {most} times; choose a smaller one"
            )
    path = f"sparse/{name}.rows"
    header = RowsHeader.of(RowType[options.rows.upper()], dim, kept, bundle_id, name)
    writer, hot = RowsWriter(folder / path, header, options.min_seen, name), HotKeys(options.min_seen)
    try:
        writer.write(lambda keep: hot.watch(checkpoint.sparse_rows(name, keep, read_state=False)))
    except OSError as error:
        raise BundleError(f"cannot write the rows of table {name!r}: {error.strerror or error}") from error
    (folder / hot_path(name)).parent.mkdir(exist_ok=True)
    _write(folder / hot_path(name), hot.to_bytes())
    return BundleTable(name, dim, options.rows, kept, dropped, path)


def _target(out: str | os.PathLike[str]) -> Path:
    """Where the bundle is to be. Refuses a place that holds something else than a bundle."""
    text = os.fspath(out)
    target = local_path(text)
    if not target.name:
        raise ConfigError(f"out={text!r:.200}: a bundle is a folder with a name")
    if target.is_dir() and any(target.iterdir()):
        try:
            is_bundle = json.loads((target / manifests.MANIFEST).read_bytes()).get("format") == manifests.FORMAT
        except (OSError, ValueError, AttributeError):
            is_bundle = False
        if not is_bundle:
            raise BundleError(f"cannot export to {target}: that directory holds other things and no bundle")
    elif target.exists() and not target.is_dir():
        raise BundleError(f"cannot export to {target}: there is a file of that name")
    return target


def schema_of(checkpoint: Checkpoint, given: Schema | None) -> Schema:
    if given is not None:
        return given
    saved = checkpoint.schema()
    if saved is None:
        raise CheckpointError(
            f"{checkpoint.location} does not say what its input looks like (no schema): give the reader's with schema="
        )
    return saved


def inputs_of(checkpoint: Checkpoint) -> Inputs | None:
    """How its samples were read; None in checkpoints of older releases."""
    saved = checkpoint.manifest.inputs
    return None if saved is None else Inputs.from_dict(saved, f"{checkpoint.location}: inputs", CheckpointError)


def model_of(checkpoint: Checkpoint, given: nn.Module | None) -> nn.Module:
    """The model with the checkpoint's dense parameters and buffers. A given model is copied, not changed."""
    description = checkpoint.manifest.model
    if given is None and description.get("name") == "custom":
        raise CheckpointError(
            f"{checkpoint.location} holds a model of your own ({description.get('class')}): say where its "
            "class is, --model my_model.py:MyNet; or export it from a script with "
            "sparsefleet.export.export_model(model, checkpoint, out)"
        )
    model = registry.build(description) if given is None else copy.deepcopy(given)
    saved = {**checkpoint.dense(), **checkpoint.buffers()}
    mine = model.state_dict()
    if set(mine) != set(saved):
        raise BundleError(
            f"{checkpoint.location} does not fit the model: only in the model: {sorted(set(mine) - set(saved))}; "
            f"only in the checkpoint: {sorted(set(saved) - set(mine))}"
        )
    for name, tensor in mine.items():
        if tuple(tensor.shape) != saved[name].shape:
            raise BundleError(
                f"{checkpoint.location}: {name!r} has shape {list(saved[name].shape)}; "
                f"the model's has {list(tensor.shape)}"
            )
    # Assign new tensors: a copied parameter may share its memory with the store's block.
    model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in saved.items()}, assign=True)
    return model.eval().requires_grad_(False)


def _bundle_id(
    checkpoint: Checkpoint, schema: Schema, inputs: Inputs | None, network: Network, options: _Options
) -> str:
    facts = [
        checkpoint.manifest.to_json().decode(),
        schema.to_dict(),
        None if inputs is None else inputs.to_dict(),
        hashlib.sha256(network.graph).hexdigest(),
        options.rows,
        options.min_seen,
        options.name,
        options.lineage.to_dict(),
    ]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _write(path: Path, data: bytes) -> None:
    try:
        with path.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise BundleError(f"cannot write {path}: {error.strerror or error}") from error


def _entry(folder: Path, path: str) -> BundleFile:
    crc = size = 0
    with (folder / path).open("rb") as file:
        while chunk := file.read(4 << 20):
            crc, size = zlib.crc32(chunk, crc), size + len(chunk)
    return BundleFile(path, size, f"crc32:{crc:08x}")
