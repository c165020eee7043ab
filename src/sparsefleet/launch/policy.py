"""What becomes of a job whose worker has died: its servers know, from the strategy of the script."""

from __future__ import annotations

from collections.abc import Mapping

from sparsefleet.core.errors import SparseFleetError
from sparsefleet.fleet.roles import Role
from sparsefleet.fleet.security import Security
from sparsefleet.store.remote_config import RemoteConfig
from sparsefleet.store.remote_link import ServerLink

ASK_SECONDS = 3.0


def goes_on_without_lost_trainers(role: Role, environment: Mapping[str, str]) -> bool:
    """Ask the first server of the job that `role` belongs to. One that does not answer says no."""
    try:
        security = Security.from_environment(environment)
        config = RemoteConfig(
            role.server_endpoints, timeout=ASK_SECONDS, token=security.token, tls_root_certs=security.roots
        )
        link = ServerLink(config, 0)
        try:
            return link.action("ping", {}).get("lost_trainer") == "drop"
        finally:
            link.client.close()
    except SparseFleetError:
        return False
