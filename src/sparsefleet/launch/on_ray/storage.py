"""Do all nodes see the folder of a job's cuts? Asked with a file that only this driver can have written."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping
from typing import Any

import ray

from sparsefleet.checkpoint import Location
from sparsefleet.core.errors import ConfigError
from sparsefleet.launch.on_ray.actor import Place
from sparsefleet.launch.on_ray.cluster import Seat

SEE_SECONDS = 60.0


def check_shared(folder: Location, actors: Mapping[Seat, Any], places: Mapping[Seat, Place]) -> None:
    """Refuse nodes that do not see it. An actor that is lost meanwhile is not its node's fault."""
    word, draft = uuid.uuid4().hex, folder / f".seen-by-all-{uuid.uuid4().hex[:8]}"
    try:
        folder.storage.make_dir(folder.path)
        folder.storage.replace_file(draft.path, word.encode())
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(f"--restarts: {folder}, for the job's cuts, cannot be written: {why}") from None
    try:
        answers = [(actors[seat].sees.remote(str(draft), word), place) for seat, place in places.items()]
        for answer, place in answers:
            with contextlib.suppress(ray.exceptions.RayActorError):
                if why := ray.get(answer, timeout=SEE_SECONDS):
                    raise ConfigError(
                        f"--restarts: node {place.address} does not see {folder}, where the driver keeps the job's "
                        f"cuts ({why}); give a place for them (--cuts) or a log folder (--log-dir) that all nodes see"
                    )
    except ray.exceptions.GetTimeoutError:
        raise ConfigError(
            f"--restarts: a node has not said within {SEE_SECONDS:g} s whether it sees {folder}, where the driver "
            f"keeps the job's cuts: does that storage hang there?"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            folder.storage.delete_file(draft.path)
