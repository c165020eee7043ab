"""Ready applications: a model together with the reader of its data, as users of Fleet know them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, ClassVar

from sparsefleet import fleet
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.schema import CRITEO, Schema
from sparsefleet.data.base import Reader
from sparsefleet.data.beside import schema_beside
from sparsefleet.data.files import list_files
from sparsefleet.data.open import open_reader
from sparsefleet.models import CTRDNN, CTRDNNConfig
from sparsefleet.models.choosing import choose
from sparsefleet.optim import SGD
from sparsefleet.word2vec import SkipGram, Vocabulary, Word2VecConfig, WordReader, count_words, share_text, text_files
from sparsefleet.word2vec.model import step_rule


class MultiSlotCTR(CTRDNN):
    """CTR-DNN on raw Criteo files.

    model = MultiSlotCTR()
    loader = model.load_criteo_from_file("./train_data")
    Trainer(optimizer).fit(model, loader, 10)
    """

    name: ClassVar[str] = CTRDNN.name  # the same network: `infer` and `export` rebuild it as CTRDNN

    def __init__(self, config: CTRDNNConfig | None = None) -> None:
        super().__init__(config=config)

    def load_criteo_from_file(
        self, path: str | os.PathLike[str], *, batch_size: int = 1000, reader: str = "queue", threads: int = 1
    ) -> Reader:
        """The rows of a folder, a file or a pattern; in a job of several trainers, this trainer's share of them.

        They are read by the schema.json that `sparsefleet data prepare` wrote beside them, where there is one, else by
        Criteo's usual constants.
        """
        files = list_files(path)
        schema = schema_beside(path)
        if (len(schema.dense), len(schema.slots)) != (len(CRITEO.dense), len(CRITEO.slots)):
            raise ConfigError(
                f"{path}: the schema beside it has {len(schema.dense)} dense features and {len(schema.slots)} slots; "
                f"Criteo's data has {len(CRITEO.dense)} and {len(CRITEO.slots)}: use CTRDNN with open_reader"
            )
        share = fleet.split_files(files) if fleet.is_initialized() else files
        return open_reader(share, schema, kind=reader, batch_size=batch_size, threads=threads)


class ClickModel:
    """Any model of the shelf, or one of your own, together with the reader of its data.

    job = ClickModel("deepfm", "./data/train", embedding_size=16)
    Trainer(optimizer, threads=2).fit(job.model, job.load("./data/train"), 3)
    """

    def __init__(
        self, name: str, data: str | os.PathLike[str], *, schema: Schema | None = None, **settings: Any
    ) -> None:
        """name: as of `train --model`. schema: by default the one beside the data. settings: those of the model."""
        self.schema = schema or schema_beside(data)
        self.model = choose(name).from_schema(self.schema, **settings)

    def load(
        self, path: str | os.PathLike[str], *, batch_size: int = 1000, reader: str = "queue", threads: int = 1
    ) -> Reader:
        """The samples of a folder, a file or a pattern; in a job of several trainers, this trainer's share of them."""
        files = list_files(path)
        share = fleet.split_files(files) if fleet.is_initialized() else files
        return open_reader(share, self.schema, kind=reader, batch_size=batch_size, threads=threads)


class Word2Vec:
    """Skip-gram word vectors from text files.

    words = Word2Vec(dim=100)
    loader = words.load_text("./corpus", epochs=5)
    Trainer(words.optimizer(), threads=2).fit(words.model, loader, 5, save=SavePolicy("runs/words"))
    WordVectors.load("runs/words").neighbours("king")
    """

    def __init__(self, config: Word2VecConfig | None = None, **settings: Any) -> None:
        """`settings`: those of `Word2VecConfig`, one by one, in place of `config`."""
        if config is not None and settings:
            raise ConfigError("give Word2Vec a config, or its settings one by one, not both")
        self.config = config or Word2VecConfig(**settings)
        self._model: SkipGram | None = None

    def load_text(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        epochs: int,
        min_count: int = 5,
        vocabulary: Vocabulary | None = None,
        batch_size: int = 1000,
        threads: int = 1,
    ) -> WordReader:
        """The words of files, folders or patterns; in a job of several trainers, this trainer's share of them.

        epochs: those of `fit`, over which the learning rate falls. vocabulary: by default the words are counted first.
        """
        files = text_files(paths)
        known = vocabulary or count_words(files, min_count=min_count, threads=threads)
        index, count = (max(fleet.worker_index(), 0), fleet.worker_num()) if fleet.is_initialized() else (0, 1)
        share = share_text(files, index, count)
        self._model = SkipGram(known, self.config)
        words = known.text_words / count
        return WordReader(share, known, self.config, epochs=epochs, batch_size=batch_size, threads=threads, words=words)

    @property
    def model(self) -> SkipGram:
        """The model of the vocabulary that `load_text` found."""
        if self._model is None:
            raise ConfigError("call load_text first: the model has a vector for each word of its vocabulary")
        return self._model

    @staticmethod
    def optimizer() -> SGD:
        """What the tables are trained with; give it to `Trainer`, or to `fleet.distributed_optimizer`."""
        return step_rule()
