"""Opens both exports of the same vectors with gensim, and compares them. Needs gensim alone.

python benchmarks/peers/gensim_opens.py TEXT_EXPORT BINARY_EXPORT
"""

import sys

import numpy as np
from gensim.models import KeyedVectors


def main() -> None:
    text = KeyedVectors.load_word2vec_format(sys.argv[1])
    binary = KeyedVectors.load_word2vec_format(sys.argv[2], binary=True)
    if text.index_to_key != binary.index_to_key or not np.array_equal(text.vectors, binary.vectors):
        raise SystemExit("gensim reads other vectors from the text than from the binary export")
    nearest = ", ".join(word for word, _ in binary.most_similar(binary.index_to_key[0], topn=3))
    print(f"{len(text):,} words of {text.vector_size} values; nearest to {text.index_to_key[0]!r}: {nearest}")


if __name__ == "__main__":
    main()
