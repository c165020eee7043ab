"""Text about a few topics, for word vectors that can be judged."""

from __future__ import annotations

import random

TOPICS = {
    "sea": ["ship", "sail", "wave", "harbour", "captain", "anchor", "tide", "coast"],
    "kitchen": ["bread", "butter", "oven", "knife", "soup", "salt", "plate", "cook"],
    "sky": ["cloud", "rain", "wind", "storm", "sun", "moon", "star", "thunder"],
}


def topical_text(lines: int, seed: int = 0) -> str:
    """Lines about one topic each: words of a topic occur together, so their vectors must come to be alike."""
    draw = random.Random(seed)
    made = []
    for _ in range(lines):
        topic = draw.choice(list(TOPICS))
        made.append(" ".join(draw.choice(TOPICS[topic]) for _ in range(12)))
    return "\n".join(made) + "\n"
