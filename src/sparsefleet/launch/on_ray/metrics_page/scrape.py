"""Ask one endpoint for its figures, and keep ours. Whatever it answers, this ends in time and within bounds."""

from __future__ import annotations

import math
import os

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from sparsefleet.launch.on_ray.series import EXPORTED_PREFIX, LABELS, SERIES

ANSWER_SECONDS = 4.0
"""For the whole answer, the wait for a free connection included."""
MOST_BYTES = 32 << 20
MOST_LINES = 20_000
"""Of ours: ten a role."""
MOST_OF_A_LINE = 4096
"""Bytes. Names of jobs and roles are short, and so is what Ray adds to them."""

Figure = tuple[str, str, str, float]
"""The series, the job's name, the role, the value."""


class BadEndpoint(Exception):
    """It has told nothing that can be read; the message says why."""


async def figures_at(session: aiohttp.ClientSession, endpoint: str) -> list[Figure]:
    """Of all jobs; BadEndpoint where there is no knowing."""
    try:
        async with session.get(
            f"http://{endpoint}/metrics",
            timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS),
            headers={"Accept": "text/plain", "Accept-Encoding": "identity"},
            allow_redirects=False,
        ) as answer:
            if answer.status != 200:
                raise BadEndpoint(f"answers with status {answer.status}")
            if answer.content_type == "text/html":
                raise BadEndpoint("answers with a page, not with figures")
            body = bytearray()
            async for part in answer.content.iter_chunked(1 << 16):
                body += part
                if len(body) > MOST_BYTES:
                    raise BadEndpoint(f"answers with more than {MOST_BYTES >> 20} MiB")
    except TimeoutError:
        raise BadEndpoint(f"no whole answer within {ANSWER_SECONDS:g} s") from None
    except aiohttp.ClientConnectorError as error:
        number = error.os_error.errno or 0  # asyncio's own text repeats the address
        raise BadEndpoint(os.strerror(number) if number > 0 else "cannot be reached") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise BadEndpoint(f"no answer by HTTP ({type(error).__name__})") from None
    return figures_in(bytes(body))


def figures_in(body: bytes) -> list[Figure]:
    """Ours of a text in Prometheus' format."""
    # A node has thousands of lines of Ray's own: parsing only ours takes a hundredth of the time.
    start = EXPORTED_PREFIX.encode()
    ours = [line for line in body.split(b"\n") if line.startswith(start) and len(line) <= MOST_OF_A_LINE]
    if len(ours) > MOST_LINES:
        raise BadEndpoint(f"has more than {MOST_LINES:,} figures of jobs")
    try:
        families = list(text_string_to_metric_families(b"\n".join(ours).decode() + "\n"))
    except Exception as error:  # the parser promises nothing about what it raises on garbage
        raise BadEndpoint(f"answers with what cannot be read ({type(error).__name__})") from None
    found = []
    for sample in (sample for family in families for sample in family.samples):
        name = sample.name.removeprefix(EXPORTED_PREFIX)
        job, role = (sample.labels.get(label) for label in LABELS)
        if name in SERIES and job and role and math.isfinite(sample.value):
            found.append((name, job, role, sample.value))
    return found
