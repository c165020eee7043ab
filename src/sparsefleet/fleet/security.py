"""Who may talk to the servers, from the environment: the shared secret and the certificates.

```
SPARSEFLEET_TOKEN      every process: the shared secret
SPARSEFLEET_TLS_CERT   servers: file with this server's certificate (PEM), with
SPARSEFLEET_TLS_KEY    servers: file with its private key (PEM)
SPARSEFLEET_TLS_ROOTS  trainers, status: file with the certificates that servers are checked against (PEM)
SPARSEFLEET_INSECURE   servers: 1 (true, yes, on) to listen beyond this machine without a token
```
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sparsefleet.core.errors import ConfigError
from sparsefleet.store.wire.auth import (
    CERTIFICATE_VARIABLE,
    KEY_VARIABLE,
    ROOTS_VARIABLE,
    TOKEN_VARIABLE,
    check_token,
    insecure_allowed,
    is_loopback,
    open_to_all,
)
from sparsefleet.store.wire.tls import check_pair, check_roots

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Security:
    token: str | None = field(default=None, repr=False)
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    roots: bytes | None = field(default=None, repr=False)
    insecure: bool = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Security:
        given = os.environ if environment is None else environment
        if bool(given.get(CERTIFICATE_VARIABLE)) != bool(given.get(KEY_VARIABLE)):
            raise ConfigError(f"{CERTIFICATE_VARIABLE} and {KEY_VARIABLE} go together: set both or none")
        security = cls(
            token=given.get(TOKEN_VARIABLE) or None,
            certificate=_file(given, CERTIFICATE_VARIABLE),
            key=_file(given, KEY_VARIABLE),
            roots=_file(given, ROOTS_VARIABLE),
            insecure=insecure_allowed(given),
        )
        if security.token:
            check_token(security.token)
        if security.certificate is not None:
            check_pair(given[CERTIFICATE_VARIABLE], given[KEY_VARIABLE])
        if security.roots is not None:
            check_roots(security.roots, f"{ROOTS_VARIABLE}={given[ROOTS_VARIABLE]!r}")
        return security

    def warn_if_open(self, trainer: str, endpoints: Sequence[str]) -> None:
        """Say what it means that servers on loopback want no token. Servers beyond it do not start without."""
        hosts = [endpoint.rpartition(":")[0] for endpoint in endpoints]
        if not self.token and not self.insecure and all(map(is_loopback, hosts)):
            log.warning("%s", open_to_all(trainer))


def _file(environment: Mapping[str, str], variable: str) -> bytes | None:
    path = environment.get(variable)
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{variable}={path!r} cannot be read: {error.strerror or error}") from None
