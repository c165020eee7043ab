"""Certificates: files that cannot work are told at once, and so is why a connection to a server cannot come about.

gRPC takes whatever it gets, and to a client a server that speaks TLS, or does not, is one that is not there.
"""

from __future__ import annotations

import socket
import ssl

from sparsefleet.core.errors import ConfigError
from sparsefleet.store.wire.auth import CERTIFICATE_VARIABLE, KEY_VARIABLE, ROOTS_VARIABLE

_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
"""What OpenSSL calls an answer that is not TLS."""


def check_roots(roots: bytes, what: str) -> None:
    """Refuse what holds no certificate; `what` is how the user knows it."""
    try:
        _client_context(roots)
    except ssl.SSLError:
        raise ConfigError(f"{what} holds no certificate that can be read; give a PEM file of certificates") from None


def check_pair(certificate: str, key: str) -> None:
    """Refuse files of a server's certificate and its private key that do not make a pair."""
    named = f"{CERTIFICATE_VARIABLE}={certificate!r}"
    with open(certificate, "rb") as file:
        check_roots(file.read(), named)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                f"{KEY_VARIABLE}={key!r} is not the key of {named}: give the two that were made together"
            ) from None
        raise ConfigError(
            f"{KEY_VARIABLE}={key!r} holds no private key that can be read; give a PEM file, not encrypted"
        ) from None


def mismatch(endpoint: str, roots: bytes | None, seconds: float) -> str | None:
    """Why a client with these roots (None: without TLS) can never talk to who listens there; None: not known.

    Nobody there, or nobody who answers, is no reason: that may still come. Takes that many seconds at most to connect,
    and as many to look.
    """
    host, _, port = endpoint.rpartition(":")
    context = _client_context(roots)
    try:
        with socket.create_connection((host.strip("[]"), int(port)), seconds) as plain:
            context.wrap_socket(plain, server_hostname=host.strip("[]")).close()
    except ssl.SSLCertVerificationError as error:
        return (
            f"its certificate is not accepted: {error.verify_message.rstrip('.')}. {ROOTS_VARIABLE} (tls_root_certs) "
            "must hold it, or its issuer's; and it must be made for the name by which the server is listed"
        )
    except ssl.SSLError as error:
        if roots is None or error.reason not in _NO_TLS:
            return None
        return (
            f"it does not speak TLS, but {ROOTS_VARIABLE} (tls_root_certs) is set: unset it, or give the servers "
            f"{CERTIFICATE_VARIABLE} and {KEY_VARIABLE}"
        )
    except (OSError, UnicodeError):  # the latter: a host name that cannot be one
        return None
    if roots is not None:
        return None
    return f"it speaks TLS: set {ROOTS_VARIABLE} (tls_root_certs) to the certificates that it is checked against"


def _client_context(roots: bytes | None) -> ssl.SSLContext:
    """As gRPC checks a server: any certificate among the roots is trusted, also one that is nobody's issuer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    if roots is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        # Files may say in any language whose certificates they are.
        context.load_verify_locations(cadata=roots.decode("ascii", "replace").replace("\N{REPLACEMENT CHARACTER}", "?"))
    return context


def _no_password() -> str:
    return ""  # or OpenSSL asks at the terminal
