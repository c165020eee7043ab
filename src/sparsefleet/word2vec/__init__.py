"""Word vectors: skip-gram with negative sampling, on the same tables, stores and modes as every other model.

```
files = text_files("corpus/")
vocabulary = count_words(files, min_count=5, threads=2)
reader = WordReader(files, vocabulary, config, epochs=5)            # words, windows, negatives
Trainer(step_rule(), threads=2).fit(SkipGram(vocabulary, config), reader, epochs=5, save=SavePolicy("runs/words"))
WordVectors.load("runs/words").neighbours("king")
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparsefleet.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from sparsefleet.word2vec.config import Word2VecConfig
    from sparsefleet.word2vec.corpus import share_text, text_files
    from sparsefleet.word2vec.model import SkipGram, step_rule
    from sparsefleet.word2vec.questions import read_questions
    from sparsefleet.word2vec.reader import WordReader
    from sparsefleet.word2vec.vectors import WordVectors, saved_vocabulary
    from sparsefleet.word2vec.vocabulary import Vocabulary, count_words, words_in

__all__ = [
    "SkipGram",
    "Vocabulary",
    "Word2VecConfig",
    "WordReader",
    "WordVectors",
    "count_words",
    "read_questions",
    "saved_vocabulary",
    "share_text",
    "step_rule",
    "text_files",
    "words_in",
]

_HOMES = {
    "SkipGram": "model",
    "Vocabulary": "vocabulary",
    "Word2VecConfig": "config",
    "WordReader": "reader",
    "WordVectors": "vectors",
    "count_words": "vocabulary",
    "read_questions": "questions",
    "saved_vocabulary": "vectors",
    "share_text": "corpus",
    "step_rule": "model",
    "text_files": "corpus",
    "words_in": "vocabulary",
}
__getattr__ = lazy_names(__name__, _HOMES)  # a command's help should not wait for torch
