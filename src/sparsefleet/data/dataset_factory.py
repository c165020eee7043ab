"""DatasetFactory: readers of files made and set up as in Fluid, for scripts that come from there.

```
dataset = DatasetFactory().create_dataset("QueueDataset")
dataset.set_use_var([("dense_input", 13)] + [f"C{i}" for i in range(1, 27)] + ["label"])
dataset.set_pipe_command("python dataset_generator.py")
dataset.set_batch_size(1000)
dataset.set_thread(2)
dataset.set_filelist(files)
```
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.layout import with_layout
from sparsefleet.core.schema import DenseFeature, Schema, Slot
from sparsefleet.data.file_reader import FileReader, Layout
from sparsefleet.data.formats import format_for
from sparsefleet.data.formats.base import Format
from sparsefleet.data.in_memory import InMemoryDataset
from sparsefleet.data.queue_dataset import QueueDataset

LABEL = "label"

_KINDS: dict[str, type[FileReader]] = {"QueueDataset": QueueDataset, "InMemoryDataset": InMemoryDataset}


class DatasetFactory:
    def create_dataset(self, datafeed_class: str = "QueueDataset") -> FileReader:
        if datafeed_class not in _KINDS:
            raise ConfigError(f"create_dataset({datafeed_class!r}): choose {' or '.join(_KINDS)}")
        return _KINDS[datafeed_class]()


def inputs_of(variables: Any) -> tuple[Schema, Layout | None]:
    """The schema of declared inputs, and the order and kind of the slots in a sample (None: the schema's own).

    The schema says the order too (`multislot`), where it is not the usual one: whoever reads such samples later has the
    schema alone.

    An input is a name (a sparse slot, or the label where the name is "label"), a pair (name, width) of dense
    values, or an object with `name`, `dtype` and `shape`, floating ones being dense. Keys are taken as they
    are: whoever wrote the sample has hashed and folded them.
    """
    if isinstance(variables, Schema):
        return variables, None
    if isinstance(variables, str) or not isinstance(variables, Iterable):
        raise ConfigError(f"set_use_var needs a Schema or a list of inputs; got {variables!r:.80}")
    dense: list[tuple[str, int]] = []
    layout: list[tuple[str, str]] = []
    for variable in variables:
        name, width = _name_and_width(variable)
        kind = "label" if name == LABEL else "sparse" if width is None else "dense"
        layout.append((name, kind))
        if kind == "dense":
            dense.append((name, width or 1))
    if len(dense) > 1 and any(width > 1 for _, width in dense):
        raise ConfigError(
            f"set_use_var: {len(dense)} dense inputs, {dense!r:.120}; "
            f"give one input with all dense values, or one input of width 1 for each"
        )
    features = [
        DenseFeature(name if width == 1 else f"{name}{index + 1}") for name, width in dense for index in range(width)
    ]
    slots = tuple(Slot(name, keys=True) for name, kind in layout if kind == "sparse")
    schema = Schema(dense=tuple(features), slots=slots, label=LABEL, sparse_feature_dim=0)
    return with_layout(schema, layout), tuple(layout)


def _name_and_width(variable: Any) -> tuple[str, int | None]:
    """An input's name, and how many dense values it has; None for feature keys and labels."""
    match variable:
        case str(name):
            if name.startswith("dense"):
                raise ConfigError(f"set_use_var: how many values has {name!r}? Say ({name!r}, 13) for thirteen")
            return name, None
        case (str(name), int(width)) if width > 0:
            return name, width
    given = getattr(variable, "name", None)
    if not isinstance(given, str):
        raise ConfigError(
            f"set_use_var: {variable!r:.80} is not an input; give a name, a pair (name, dense width), "
            f"or an object with name, dtype and shape"
        )
    dtype, shape = str(getattr(variable, "dtype", "")), getattr(variable, "shape", ())
    if given == LABEL or "float" not in dtype.lower():
        return given, None
    return given, int(shape[-1]) if shape else 1


def multi_slot_format(schema: Schema, layout: Layout | None, pipe_command: str | None) -> Format:
    """MultiSlot text, from the files themselves or from a command that each file is piped through."""
    return format_for("pipe" if pipe_command else "multislot", schema, layout=layout, pipe_command=pipe_command)
