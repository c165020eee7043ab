"""The token that clients of a model server show with each request, in a header of HTTP."""

from __future__ import annotations

from sparsefleet.core.errors import ConfigError

PREDICT_TOKEN = "SPARSEFLEET_PREDICT_TOKEN"
"""The variable that gives it, to servers and to clients."""


def check_token(source: str, text: str) -> None:
    """ConfigError, which names the source, for what cannot stand in a header."""
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ConfigError(f"{source}: a token is printable ASCII without spaces: it stands in a header of HTTP")
