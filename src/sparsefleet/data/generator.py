"""Data generators: a user's Python that turns raw lines into MultiSlot text, for `pipe_command` or by hand.

```
import sparsefleet.data.generator as dg

class Clicks(dg.MultiSlotDataGenerator):
    def generate_sample(self, line):
        def reader():
            user, ad, click = line.split()
            yield [("user", [dg.stable_hash(user)]), ("ad", [dg.stable_hash(ad)]), ("label", [int(click)])]
        return reader

Clicks().run_from_stdin()                   # cat part-0 | python clicks.py
```

A sample of the output is, slot by slot in a fixed order, how many values and the values, with spaces between.

A pipe command starts once per file: this module loads neither numpy nor torch, nor even `typing`.
"""

from __future__ import annotations

import os
import sys

from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.data.salted_hash import find_hash, salted
from sparsefleet.data.stable_hash import stable_hash

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any, NoReturn

    Sample = Iterable[tuple[str, list[Any]]]
    Place = tuple[int, str | None]  # number and text of an input line
    Samples = Callable[[], Iterable[Sample | None]] | Iterable[Sample | None]

__all__ = ["DataGenerator", "MultiSlotDataGenerator", "MultiSlotStringDataGenerator", "stable_hash"]

_SHAPE = "a sample is a list of (name, [value, …]) pairs, such as [('words', [1926, 8, 17]), ('label', [1])]"


class DataGenerator:
    """What both generators share: derive from one of them and write `generate_sample`."""

    def __init__(self) -> None:
        self.batch_size_ = 32
        self._slots: list[str] | None = None
        self._where: list[Place] = []

    def generate_sample(self, line: str | None) -> Samples:
        """One input line's samples: a function without arguments that yields them, or any iterable of them.

        A sample that is None is left out. `line` is None in `run_from_memory`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define generate_sample(self, line): {_SHAPE}")

    def generate_batch(self, samples: list[Sample]) -> Samples:
        """Change samples together, `set_batch` of them at a time; by default they pass as they are."""
        return samples

    def set_batch(self, batch_size: int) -> None:
        """How many samples `generate_batch` gets at once."""
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ConfigError(f"set_batch({batch_size!r}): must be a whole number, 1 or above")
        self.batch_size_ = batch_size

    def run_from_stdin(self) -> None:
        """Read lines from standard input, write samples to standard output.

        An error is printed with its line, and the process ends with status 1. A closed output ends it
        quietly.
        """
        reconfigure = getattr(sys.stdin, "reconfigure", None)
        if reconfigure is not None:
            # Bytes that are not UTF-8 pass through unchanged, so that their hash is that of the bytes in the
            # file.
            reconfigure(encoding="utf-8", errors="surrogateescape")
        self._run(enumerate(sys.stdin, 1))

    def run_from_memory(self) -> None:
        """Write the samples of `generate_sample(None)`: for trying things out."""
        self._run([(0, None)])

    def _run(self, lines: Iterable[Place]) -> None:
        reconfigure = getattr(sys.stdout, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(encoding="utf-8", errors="surrogateescape")
        if salted() and (where := find_hash(self, ("generate_sample", "generate_batch"))):
            sys.stderr.write(
                f"{os.path.basename(sys.argv[0]) or 'generator'}: warning: it calls Python's own hash ({where}): of "
                "text that differs in every process, so these keys fit those of no other run; use stable_hash, or set "
                "PYTHONHASHSEED=0 (a pipe_command has it set)\n"
            )
        own_batches = type(self).generate_batch is not DataGenerator.generate_batch
        try:
            for samples, places in self._batches(lines):
                self._where = places
                for index, sample in enumerate(_iterate(self.generate_batch(samples), "generate_batch")):
                    # A generate_batch of the user's own may change their number and order.
                    self._where = places if own_batches else places[index : index + 1]
                    if sample is not None:
                        sys.stdout.write(self._gen_str(sample))
            sys.stdout.flush()
        except BrokenPipeError:
            # Whoever read has enough (head). Python would complain when it flushes at exit: give it nowhere
            # to.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)
        except DataError as error:
            _fail(str(error), self._where)
        except Exception as error:
            import traceback

            traceback.print_exc()
            _fail(f"{type(error).__name__}: {error}", self._where)

    def _batches(self, lines: Iterable[Place]) -> Iterator[tuple[list[Sample], list[Place]]]:
        """Samples in lists of the batch size, and the line of each."""
        samples: list[Sample] = []
        places: list[Place] = []
        for place in lines:
            self._where = [place]
            for sample in _iterate(self.generate_sample(place[1]), "generate_sample"):
                if sample is None:
                    continue
                samples.append(sample)
                places.append(place)
                if len(samples) == self.batch_size_:
                    yield samples, places
                    samples, places = [], []
                    self._where = [place]
        if samples:
            yield samples, places

    def _gen_str(self, line: Sample) -> str:
        """One sample of the output, with its line end."""
        pairs = self._pairs(line)
        parts = []
        for name, values in pairs:
            if not isinstance(values, list | tuple):
                raise DataError(f"slot {name!r} is {values!r:.80}, not a list of values; {_SHAPE}")
            if not values:
                raise DataError(f"slot {name!r} is empty; give it a value that stands for nothing, such as 0")
            parts.append(str(len(values)))
            parts.extend(self._texts(name, values))
        return " ".join(parts) + "\n"

    def _pairs(self, sample: Sample) -> list[tuple[str, Any]]:
        """The sample as a list of pairs, the same slots in the same order every time."""
        try:
            pairs = [(name, values) for name, values in sample]
        except (TypeError, ValueError):
            raise DataError(f"{sample!r:.80} is not a sample; {_SHAPE}") from None
        names = [name for name, _ in pairs]
        if names != self._slots:
            if self._slots is not None:
                _refuse_slots(names, self._slots)
            for name in names:
                if not isinstance(name, str):
                    raise DataError(f"the slot name {name!r} is not text; {_SHAPE}")
            if not names:
                raise DataError(f"the sample has no slots; {_SHAPE}")
            if len(set(names)) < len(names):
                raise DataError(f"a slot comes twice in the sample: {', '.join(names)}")
            self._slots = names
        return pairs

    def _texts(self, name: str, values: Sequence[Any]) -> Sequence[str]:
        raise NotImplementedError("derive from MultiSlotDataGenerator or MultiSlotStringDataGenerator")


class MultiSlotDataGenerator(DataGenerator):
    """Values are numbers: whole ones for feature keys and labels, floats for dense features."""

    def _texts(self, name: str, values: Sequence[Any]) -> Sequence[str]:
        return [repr(value) if type(value) is int else _number(name, value) for value in values]


class MultiSlotStringDataGenerator(DataGenerator):
    """Values are text that is a number already: they are only checked and joined, which is faster."""

    def _texts(self, name: str, values: Sequence[Any]) -> Sequence[str]:
        try:
            whole = len(" ".join(values).split()) == len(values) and all(values)
        except TypeError:
            strange = next(value for value in values if not isinstance(value, str))
            raise DataError(
                f"slot {name!r} has {strange!r:.80} of type {type(strange).__name__}; "
                f"MultiSlotStringDataGenerator takes text, MultiSlotDataGenerator takes numbers"
            ) from None
        if not whole:
            strange = next(value for value in values if len(value.split()) != 1)
            raise DataError(f"slot {name!r} has {strange!r:.80}; a value must not be blank or hold spaces")
        return values


def _number(name: str, value: Any) -> str:
    """The shortest text that reads back as the same number; numpy's numbers print like Python's."""
    if isinstance(value, float):
        if value - value != 0:
            raise DataError(f"slot {name!r} has {float(value)!r}, which is no number to train on")
        return float.__repr__(value)
    if hasattr(value, "__index__"):
        return repr(value.__index__())
    if hasattr(value, "__float__") and not isinstance(value, str | bytes):
        return _number(name, float(value))
    raise DataError(
        f"slot {name!r} has {value!r:.80} of type {type(value).__name__}; values must be int or float "
        f"(MultiSlotStringDataGenerator takes text)"
    )


def _refuse_slots(names: list[str], expected: list[str]) -> NoReturn:
    if len(names) != len(expected):
        difference = f"{len(names)} slots where the first sample had {len(expected)}"
    else:
        at = next(i for i, (one, other) in enumerate(zip(names, expected, strict=True)) if one != other)
        difference = f"slot {names[at]!r} at place {at + 1} where the first sample had {expected[at]!r}"
    raise DataError(f"{difference}; every sample must have the same slots in the same order")


def _iterate(samples: Any, source: str) -> Iterator[Any]:
    given: Iterable[Any] = samples() if callable(samples) else samples
    try:
        return iter(given)
    except TypeError:
        raise DataError(
            f"{source} gave {given!r:.80}; it must return a function that yields samples, or an iterable"
        ) from None


def _fail(reason: str, where: list[Place]) -> NoReturn:
    """Say what is wrong and where, after the good samples, and end the process with status 1."""
    try:
        sys.stdout.flush()
    finally:
        lines = [(number, text) for number, text in where if text is not None]
        place = ""
        if lines:
            first, last = lines[0], lines[-1]
            place = f"line {first[0]}" if first[0] == last[0] else f"lines {first[0]} to {last[0]}"
            place = f"{place}: "
        shown = f"\n  {lines[0][1]!r:.300}" if lines else ""
        text = f"{os.path.basename(sys.argv[0]) or 'generator'}: {place}{reason}{shown}\n"
        sys.stderr.write(text.encode("utf-8", "backslashreplace").decode("utf-8"))
        sys.stderr.flush()
        sys.exit(1)
