"""ScaleRequest: the wish that a job goes on with another number of servers, and how far that is (`sparsefleet scale`).

```
asked        a server notes it; trainers hear of it with their next sign of life
cut taken    the first trainer has written a cut, and says where
begun        the launcher, which looks at servers all the time, begins an attempt from that cut with so many servers;
             the wish ends with the attempt that it was made in
error        the cut could not be written, or the launcher cannot do it: nothing has changed
```
"""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class ScaleRequest:
    servers: int
    ticket: str = field(default_factory=lambda: uuid.uuid4().hex)
    cut: str | None = None
    """Taken for this request."""
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
