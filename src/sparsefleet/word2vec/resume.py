"""Going on with a saved run: what it was trained with must be what it goes on with."""

from __future__ import annotations

from sparsefleet.checkpoint import AnyPath, Checkpoint, latest
from sparsefleet.core.errors import ConfigError
from sparsefleet.word2vec.config import Word2VecConfig


def check_resumed(path: AnyPath, config: Word2VecConfig) -> None:
    """Refuse to go on with other settings than the checkpoint's: nobody could say what the model was trained with."""
    checkpoint = Checkpoint.open(latest(path))
    saved = checkpoint.manifest.model.get("settings")
    if not isinstance(saved, dict):
        raise ConfigError(f"{checkpoint.location} is no checkpoint of word vectors: nothing to go on with")
    differing = [
        f"{name} was {saved.get(name)} then, is {value} now"
        for name, value in config.to_dict().items()
        if saved.get(name) != value
    ]
    if differing:
        raise ConfigError(
            f"{checkpoint.location} was trained with other settings: {'; '.join(differing)}. Give those, or begin anew"
        )
