"""Times that all lie before 1980: most likely a date (20141021) or an hour (14102113) that was taken as seconds."""

from __future__ import annotations

import logging

import numpy as np

from sparsefleet.core.batch import Batch

logger = logging.getLogger("sparsefleet.data")

FROM_1980 = 315_532_800


class OldTimes:
    """One for the files that a format reads: it tells once."""

    def __init__(self, column: str | None, time_format: str) -> None:
        """`column`: of the time; None: there is none."""
        self._column, self._time_format = column, time_format
        self._told = False

    def look_at(self, batch: Batch, file: str) -> None:
        """At the first samples of a file."""
        if self._told or self._column is None or batch.times is None or not len(batch):
            return
        newest = int(batch.times.max())
        if newest < FROM_1980:
            self._told = True
            logger.warning(
                "%s: column %r: all of the first %d times lie before 1980 (the latest is %s), as time_format = %r "
                'has them; that of hours such as 14102113 is "yymmddhh", and a date is written 2014-10-21',
                *(file, self._column, len(batch), np.datetime64(newest, "s"), self._time_format),
            )
