"""gensim's word2vec on the same text with the same settings; prints seconds of training. Needs gensim alone.

python benchmarks/peers/gensim_words.py TEXT VECTORS DIM WORKERS EPOCHS SEED
"""

import sys
import time

from gensim.models import Word2Vec
from gensim.models.word2vec import LineSentence


def main() -> None:
    text, vectors, dim, workers, epochs, seed = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:7])
    model = Word2Vec(
        vector_size=dim, window=5, negative=5, sg=1, hs=0, sample=1e-3, min_count=5, workers=workers, seed=seed
    )
    sentences = LineSentence(text)
    model.build_vocab(sentences)
    since = time.perf_counter()
    model.train(sentences, total_examples=model.corpus_count, epochs=epochs)
    seconds = time.perf_counter() - since
    model.wv.save_word2vec_format(vectors)
    print(seconds)


if __name__ == "__main__":
    main()
