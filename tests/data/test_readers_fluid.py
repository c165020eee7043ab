"""Readers made and set up as in Fluid, and the package's lazy names."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from reader_contract import SCHEMA, FakeFormat, drain

import sparsefleet.data as data
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.schema import CRITEO
from sparsefleet.data.dataset_factory import DatasetFactory, inputs_of


@pytest.mark.parametrize("name", ["QueueDataset", "InMemoryDataset"])
def test_setters_do_what_the_constructor_does(name: str) -> None:
    format = FakeFormat([20, 11])
    dataset = DatasetFactory().create_dataset(name)
    dataset.set_batch_size(5)
    dataset.set_thread(2)
    dataset.set_filelist(format.files)
    dataset.set_format(format)
    if name == "InMemoryDataset":
        assert isinstance(dataset, data.InMemoryDataset)
        dataset.load_into_memory()
    assert dataset.schema is SCHEMA
    with dataset.epoch() as epoch:
        assert len(epoch.streams) == 2
    assert sum(len(batch) for stream in drain(dataset, 2) for batch in stream) == 31


def test_the_default_is_a_queue_dataset_and_others_are_refused() -> None:
    assert type(DatasetFactory().create_dataset()) is data.QueueDataset
    with pytest.raises(ConfigError, match="choose QueueDataset or InMemoryDataset"):
        DatasetFactory().create_dataset("BoxPSDataset")


def test_settings_are_fixed_once_an_epoch_has_started() -> None:
    format = FakeFormat([5])
    dataset = data.QueueDataset(format.files, format)
    drain(dataset)
    for setter, value in (
        ("set_batch_size", 3),
        ("set_thread", 2),
        ("set_filelist", ["0"]),
        ("set_pipe_command", "cat"),
    ):
        with pytest.raises(ConfigError, match=f"{setter} after the first epoch has started"):
            getattr(dataset, setter)(value)


def test_what_is_missing_is_named() -> None:
    dataset = DatasetFactory().create_dataset()
    with pytest.raises(ConfigError, match="call set_filelist"):
        dataset.epoch()
    dataset.set_filelist(["0"])
    with pytest.raises(ConfigError, match="call set_use_var with a schema or the names"):
        dataset.epoch()
    with pytest.raises(ConfigError, match="pipe_command=' ' must be a shell command"):
        dataset.set_pipe_command(" ")


def test_inputs_by_name_width_or_variable() -> None:
    by_name = [("dense_input", 13), *(f"C{i}" for i in range(1, 27)), "label"]
    variables = [
        SimpleNamespace(name="dense_input", dtype="float32", shape=(-1, 13)),
        *(SimpleNamespace(name=f"C{i}", dtype="int64", shape=(-1, 1)) for i in range(1, 27)),
        SimpleNamespace(name="label", dtype="int64", shape=(-1, 1)),
    ]
    schema, layout = inputs_of(by_name)
    assert (schema, layout) == inputs_of(variables)
    assert schema.slot_names == CRITEO.slot_names
    assert (len(schema.dense), schema.sparse_feature_dim) == (13, 0)
    assert layout is not None
    assert layout[0] == ("dense_input", "dense")
    assert layout[1:3] == (("C1", "sparse"), ("C2", "sparse"))
    assert layout[-1] == ("label", "label")
    assert inputs_of(CRITEO) == (CRITEO, None)
    assert inputs_of([("x", 1), ("y", 1), "a"])[0].dense_names == ("x", "y")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ("C1", "needs a Schema or a list of inputs; got 'C1'"),
        (5, "needs a Schema or a list of inputs; got 5"),
        ([7], "7 is not an input"),
        (["dense_input", "C1"], "how many values has 'dense_input'"),
        ([("d", 2), ("e", 3)], "2 dense inputs"),
    ],
)
def test_strange_inputs_are_refused(inputs: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DatasetFactory().create_dataset().set_use_var(inputs)


def test_a_pipe_command_of_a_generator_is_read(tmp_path) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("sparsefleet.data.formats.pipe")
    script = tmp_path / "generator.py"
    script.write_text(
        "import sparsefleet.data.generator as dg\n"
        "class G(dg.MultiSlotDataGenerator):\n"
        "    def generate_sample(self, line):\n"
        "        n = int(line)\n"
        "        yield [('dense_input', [n / 2, 1.0]), ('a', [n, n + 1]), ('label', [n % 2])]\n"
        "G().run_from_stdin()\n"
    )
    files = []
    for part in range(3):
        files.append(tmp_path / f"part-{part}")
        files[-1].write_text("".join(f"{n}\n" for n in range(part * 10, part * 10 + 10)))
    dataset = DatasetFactory().create_dataset()
    dataset.set_use_var([("dense_input", 2), "a", "label"])
    dataset.set_pipe_command(f"{sys.executable} {script}")
    dataset.set_batch_size(7)
    dataset.set_filelist(files)
    (batches,) = drain(dataset)
    assert [len(batch) for batch in batches] == [7, 7, 7, 7, 2]
    assert [float(x) for batch in batches for x in batch.dense[:, 0]] == [n / 2 for n in range(30)]
    assert [int(key) for batch in batches for key in batch.keys[::2]] == list(range(30))


def test_the_package_loads_its_names_when_they_are_used() -> None:
    for name in data.__all__:
        assert getattr(data, name).__name__ == name
        assert name in dir(data)
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        data.Nonsense  # noqa: B018
