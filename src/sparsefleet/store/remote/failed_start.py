"""A server that cannot start tells the others of its job, so that trainers which wait for it hear of it from them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sparsefleet.core.errors import StoreError
from sparsefleet.store.remote.config import RemoteConfig
from sparsefleet.store.remote.link import NOT_UP, ServerLink, on_all
from sparsefleet.store.wire.stranger import Stranger

TELL_SECONDS = 10.0
"""For so long, servers that have not come up yet are tried."""
TRY_SECONDS = 1.0


def tell_peers(config: RemoteConfig, index: int, reason: str) -> None:
    """Tell every other server of the job why this one did not start.

    Not where something like a server of ours has the address: a job that runs there already is not to be ended by one
    that was started a second time.
    """
    peers = [ServerLink(config, other) for other in range(len(config.endpoints)) if other != index]
    if not peers or Stranger(config.endpoints[index], tls=config.tls_root_certs is not None).like_ours():
        return
    deadline = time.monotonic() + TELL_SECONDS

    def tell(link: ServerLink) -> None:
        while time.monotonic() < deadline:
            try:
                link.action("server_failed", {"index": index, "reason": reason}, TRY_SECONDS)
                return
            except StoreError as error:
                if not isinstance(error.__cause__, NOT_UP):
                    return
            time.sleep(0.2)

    on_all(peers, tell)


def check_peers(links: Sequence[ServerLink], waited_for: ServerLink) -> None:
    """Raise if another server knows that the one that is waited for did not start."""

    def ask(link: ServerLink) -> str | None:
        try:
            why = link.action("ping", {}, TRY_SECONDS).get("broken")
        except StoreError:  # it is not up itself
            return None
        return why if isinstance(why, str) else None

    for why in on_all([link for link in links if link is not waited_for], ask):
        if why is not None:
            raise StoreError(why)
