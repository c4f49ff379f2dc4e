"""Environment variables about connections: proxies, hosts without one, certificates.

httpx stops at an entry of ``NO_PROXY`` that it cannot read, such as an IPv6 network or an address in
brackets. So proxies are read here, for either library. An entry that cannot be read is passed over, as
by curl and httpx2. httpx matches no networks, of either family.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from ipaddress import ip_network
from typing import Any
from urllib.request import getproxies

__all__ = ["is_proxied", "load_certificates", "transports_by_pattern"]


def is_proxied(scheme: str) -> bool:
    """Whether the environment names a proxy for a scheme, even if ``NO_PROXY`` exempts some hosts."""
    proxies = getproxies()
    return scheme in proxies or "all" in proxies


def transports_by_pattern(library: Any, make: Callable[[str], Any]) -> dict[str, Any]:
    """Transports for the ``mounts`` of a client, by pattern; ``None`` for hosts without a proxy.

    ``make`` makes a transport through the proxy at a URL.

    Raises:
        ValueError: A variable names a proxy that cannot be used. The text says which variable, and nothing
            of the credential.
    """
    named = getproxies()
    mounts: dict[str, Any] = {}
    for scheme in ("http", "https", "all"):
        if url := named.get(scheme):
            try:
                mounts[f"{scheme}://"] = make(url if "://" in url else f"http://{url}")
            except ImportError as error:
                raise ValueError(
                    f"the proxy that {scheme.upper()}_PROXY names cannot be used: {error}"
                ) from error
            except (ValueError, library.InvalidURL):
                # Its text may be the password.
                raise ValueError(
                    f"{scheme.upper()}_PROXY is no URL of a proxy, such as http://proxy.example:3128"
                ) from None
    for entry in map(str.strip, named.get("no", "").split(",")) if mounts else ():
        if entry == "*":
            return {}
        patterns = [_pattern(entry)] if entry else []
        if "xn--" in entry:  # neither library matches Punycode behind an asterisk
            patterns.append(f"all://{entry}")
        mounts |= {pattern: None for pattern in patterns if _is_readable(library, pattern)}
    return mounts


def load_certificates(library: Any, *, trust_env: bool = True) -> ssl.SSLContext:
    """The certificates that a client of a library trusts. Takes some 30 milliseconds.

    Raises:
        ValueError: ``SSL_CERT_FILE`` cannot be read. The text says so.
    """
    try:
        context: ssl.SSLContext = library.create_ssl_context(trust_env=trust_env)
    except OSError as error:  # which ssl.SSLError is as well; neither says the file
        raise ValueError(f"SSL_CERT_FILE is no file of certificates that can be read: {error}") from error
    return context


def _pattern(entry: str) -> str:
    """An entry of ``NO_PROXY`` as a pattern of the library."""
    if "://" in entry:
        return entry
    bare = entry.removeprefix("[").replace("]/", "/").removesuffix("]")
    try:
        network = ip_network(bare, strict=False)
    except ValueError:
        as_it_is = entry == "localhost" or entry.startswith(("*", "["))
        return f"all://{entry}" if as_it_is else f"all://*{entry}"
    address = f"[{network.network_address}]" if network.version == 6 else network.network_address
    return f"all://{address}" + ("" if network.num_addresses == 1 else f"/{network.prefixlen}")


def _is_readable(library: Any, pattern: str) -> bool:
    try:
        library.AsyncClient(transport=library.AsyncBaseTransport(), mounts={pattern: None})
    except (library.InvalidURL, ValueError):  # the latter of idna, for a host in Punycode
        return False
    return True
