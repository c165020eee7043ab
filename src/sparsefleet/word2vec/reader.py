"""WordReader: text as batches of words, with the windows and negatives drawn for them.

A sample is a word of the text that is in the vocabulary and was not left out by subsampling. Its batch has
    slot "word"       the word's number
    slot "negative"   the numbers of its negatives
    dense [B, 1]      how far its window reaches
    groups [B]        equal for words of one line: windows end with it
    weights [B]       its learning rate, which falls in a straight line with the place in the text
    labels [B]        1: the word stands there
All of it is a function of seed, epoch and place in the text: a resumed run draws as it would have without a break.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import Batch, Mark
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.schema import DenseFeature, Schema, Slot
from sparsefleet.data.batching import check_batch_size
from sparsefleet.data.files import is_gzip
from sparsefleet.data.formats.base import BadSamples, Chunk, Unit
from sparsefleet.data.pass_reader import PassReader, check_threads
from sparsefleet.data.passes import Pass, check_position
from sparsefleet.data.split import parse_unit
from sparsefleet.data.units import UnitPass, check_same_files, files_with_sizes, units_of
from sparsefleet.kernels.words import Samples, WordParser
from sparsefleet.word2vec.config import BATCH_WORDS, Word2VecConfig
from sparsefleet.word2vec.corpus import blocks, plan
from sparsefleet.word2vec.vocabulary import Vocabulary

WORD, NEGATIVE = "word", "negative"
SLOTS = (WORD, NEGATIVE)
PIECES_PER_THREAD = 4
_END = np.empty(0, np.uint8)


class WordReader(PassReader):
    def __init__(
        self,
        files: Sequence[str],
        vocabulary: Vocabulary,
        config: Word2VecConfig | None = None,
        *,
        epochs: int = 5,
        batch_size: int = BATCH_WORDS,
        threads: int = 1,
        words: float | None = None,
    ) -> None:
        """files: as `share_text` gives them. epochs: of the whole training, over which the learning rate falls.

        words: about how many an epoch has, for telling the speed; by default all that the vocabulary was counted in.
        """
        super().__init__()
        if epochs < 1:
            raise ConfigError(f"epochs={epochs} must be 1 or above")
        if not files:
            raise ConfigError("there is no text to read: give at least one file")
        self.vocabulary, self.config, self.epochs = vocabulary, config or Word2VecConfig(), epochs
        self.batch_size, self.threads = check_batch_size(batch_size), check_threads(threads)
        self._files = list(files)
        self._table = vocabulary.table(self.config.subsample)
        self._epoch = 0
        self._unpacked: dict[str, int] = {}
        self.words = float(vocabulary.text_words if words is None else words)
        self.schema = Schema(
            dense=(DenseFeature("radius"),),
            slots=tuple(Slot(name) for name in SLOTS),
            sparse_feature_dim=len(vocabulary),
            hash_seed=vocabulary.digest,  # another vocabulary has other keys
        )

    def set_epoch(self, number: int) -> None:
        self._epoch = number

    def _start(self, threads: int, sought: Mapping[str, Any]) -> Pass:
        if sought:
            self._check(sought)
            units = units_of(sought)
        else:
            units = plan(self._files, threads * PIECES_PER_THREAD if threads > 1 else 1)
        sizes = [self._text_bytes(unit) for unit in units]
        total, before, at = max(1, sum(sizes)), {}, 0
        for unit, size in zip(units, sizes, strict=True):
            before[unit] = (at / total, size / total)
            at += size
        return UnitPass(
            "words",
            {"files": self._sized_files()},
            units,
            partial(self._read, self._epoch, before),
            lengths=[_length(unit) for unit in units],
            sought=sought,
            nothing=self._why_nothing,
        )

    def _why_nothing(self) -> str:
        return (
            "no words of the text are left to train on: they are not in the vocabulary, or so frequent that "
            f"subsample={self.config.subsample:g} leaves them all out (0 leaves none out)"
        )

    def _check(self, position: Mapping[str, Any]) -> None:
        check_position(position, "words")
        check_same_files(position, self._sized_files())

    def _sized_files(self) -> list[list[Any]]:
        return files_with_sizes(self._file_names())

    def _file_names(self) -> list[str]:
        return list(dict.fromkeys(parse_unit(name).file for name in self._files))

    def _read(
        self,
        epoch: int,
        before: Mapping[Unit, tuple[float, float]],
        unit: Unit,
        bad_samples: BadSamples,
        resume: Mark | None = None,
    ) -> Iterator[Chunk]:
        config, (start, share) = self.config, before[unit]
        packed = is_gzip(unit.file)
        known = 0 if resume is None else resume.samples
        offset = None if resume is None or packed else resume.offset
        parser = WordParser(
            self._table,
            self._seed(epoch, unit),
            config.window,
            config.negatives,
            config.shared_negatives,
            0 if packed else known,  # gzip is read anew, and its known words are passed over
        )
        first, size = None, max(1, self._text_bytes(unit))
        for block, at in itertools.chain(blocks(unit, offset), [(_END, 0)]):
            first = at if first is None else first
            samples = _after(parser.parse(block, not len(block)), known, 1 + config.negatives)
            if not len(samples.numbers):
                continue
            ends = samples.ends + first
            done = epoch + start + share * np.minimum((ends - unit.start) / size, 1.0)
            # There is no going back to a place within gzip.
            yield Chunk(self._batch(samples, done), samples.numbers, None if packed else ends)

    def _text_bytes(self, unit: Unit) -> int:
        """Bytes of the unit's text. The rate falls with the place in the text, so those of gzip are counted, once."""
        if not is_gzip(unit.file):
            return _length(unit)
        if unit.file not in self._unpacked:
            self._unpacked[unit.file] = sum(len(block) for block, _ in blocks(unit))
        return self._unpacked[unit.file]

    def _batch(self, samples: Samples, done: npt.NDArray[np.float64]) -> Batch:
        """done: epochs behind the words, with the present one's part."""
        count, width = len(samples.numbers), 1 + self.config.negatives
        offsets = np.empty(2 * count + 1, np.int64)
        offsets[0::2] = np.arange(count + 1) * width
        offsets[1::2] = offsets[:-1:2] + 1
        rates = np.maximum(self.config.min_learning_rate, self.config.learning_rate * (1 - done / self.epochs))
        return Batch.trusted(
            labels=np.ones(count, np.float32),
            dense=samples.radius.reshape(count, 1),
            keys=samples.keys,
            offsets=offsets,
            slots=SLOTS,
            weights=rates.astype(np.float32),
            groups=samples.groups,
        )

    def _seed(self, epoch: int, unit: Unit) -> int:
        place = [parse_unit(name).file for name in self._files].index(unit.file)
        digest = hashlib.blake2b(f"{self.config.seed}:{epoch}:{place}:{unit.start}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little")


def _after(samples: Samples, known: int, width: int) -> Samples:
    """The samples behind the first `known` words of the unit."""
    if not known or not len(samples.numbers) or samples.numbers[0] > known:
        return samples
    new = int(np.searchsorted(samples.numbers, known, "right"))
    return Samples(
        samples.keys[new * width :],
        samples.radius[new:],
        samples.groups[new:],
        samples.numbers[new:],
        samples.ends[new:],
    )


def _length(unit: Unit) -> int:
    """Bytes on disk."""
    if unit.stop is not None:
        return unit.stop - unit.start
    size = files_with_sizes([unit.file])[0][1]
    return max(0, (size or 0) - unit.start)
