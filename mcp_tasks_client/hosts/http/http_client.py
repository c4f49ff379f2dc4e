"""Whole HTTP clients with durable tasks, in the shapes that agent frameworks take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, overload

from ...sessions.http.variables import load_certificates, transports_by_pattern
from ..shared_options import SharedOptions
from .tasks_http_transport import TasksHttpTransport

if TYPE_CHECKING:
    import httpx
    import httpx2

__all__ = ["Library", "tasks_http_client", "tasks_http_client_factory"]

Library: TypeAlias = Literal["httpx", "httpx2"]

_OF_TASKS: Final = frozenset(one.name for one in fields(SharedOptions))
_OF_CONNECTIONS: Final = frozenset(
    {"verify", "cert", "http1", "http2", "limits", "uds", "local_address", "retries", "socket_options"}
)

_TIMEOUT_S: Final = 30.0
_READ_TIMEOUT_S: Final = 300.0
"""Seconds, as the official SDK has them in its own client: a server may hold a reply for minutes."""


@overload
def tasks_http_client(*, library: Literal["httpx"], **options: Any) -> httpx.AsyncClient: ...


@overload
def tasks_http_client(*, library: Literal["httpx2"] | None = None, **options: Any) -> httpx2.AsyncClient: ...


def tasks_http_client(*, library: Library | None = None, **options: Any) -> Any:
    """An HTTP client with durable tasks, for ``http_client=``.

    ::

        http = tasks_http_client()
        async with streamable_http_client(url, http_client=http) as (read, write): ...

    Args:
        library: ``"httpx2"``, which mcp 2.x takes, or ``"httpx"``, which mcp 1.x takes. ``None`` is httpx2
            where it is installed.
        options: Those of :class:`TasksHttpTransport`, except ``inner``, and those of the library's
            ``AsyncClient``. ``transport`` is the inner one, if it is given. ``trust_env`` and ``proxy`` count
            as they do there. Without ``timeout`` it is 30 seconds, and 300 for reading, as in the SDK.

    Returns:
        An ``AsyncClient`` of the library.

    Raises:
        ImportError: The library is not installed.
        TypeError: An option is known neither to the library nor to :class:`TasksHttpTransport`.
        ValueError: An option makes no sense, or an environment variable names a proxy or certificates that
            cannot be used.
    """
    module = _library(library)
    tasks = {name: options.pop(name) for name in _OF_TASKS & options.keys()}
    inner = options.pop("transport", None)

    def make(inner: Any) -> TasksHttpTransport:
        return TasksHttpTransport(inner, **tasks)

    options.setdefault("timeout", module.Timeout(_TIMEOUT_S, read=_READ_TIMEOUT_S))
    if inner is None:
        of_connections = {name: options.pop(name) for name in _OF_CONNECTIONS & options.keys()}
        of_connections["trust_env"] = options.get("trust_env", True)
        proxy = options.pop("proxy", None)
        if of_connections.get("verify", True) is True:
            of_connections["verify"] = load_certificates(module, trust_env=of_connections["trust_env"])

        def make_through(proxy: Any) -> TasksHttpTransport:
            return make(module.AsyncHTTPTransport(proxy=proxy, **of_connections))

        transport = make_through(proxy)
        if proxy is None and of_connections["trust_env"]:
            # The library itself looks at the environment only where it makes all transports.
            options["mounts"] = transports_by_pattern(module, make_through) | (options.get("mounts") or {})
    else:
        transport = make(inner)
    return module.AsyncClient(transport=transport, **options)


@overload
def tasks_http_client_factory(
    *, library: Literal["httpx"], **options: Any
) -> Callable[..., httpx.AsyncClient]: ...


@overload
def tasks_http_client_factory(
    *, library: Literal["httpx2"] | None = None, **options: Any
) -> Callable[..., httpx2.AsyncClient]: ...


def tasks_http_client_factory(*, library: Library | None = None, **options: Any) -> Any:
    """A factory of HTTP clients with durable tasks, for ``httpx_client_factory=``.

    Args:
        library: As for :func:`tasks_http_client`.
        options: As for :func:`tasks_http_client`. Arguments of the factory win over them.

    Returns:
        ``factory(headers=None, timeout=None, auth=None, **more)``, with further options of the library's
        ``AsyncClient``. Each call makes a client of its own.

    Raises:
        ImportError: The library is not installed.
    """
    _library(library)

    def factory(
        headers: Mapping[str, str] | None = None,
        timeout: httpx.Timeout | httpx2.Timeout | None = None,
        auth: httpx.Auth | httpx2.Auth | None = None,
        **more: Any,
    ) -> Any:
        given = {"headers": headers, "timeout": timeout, "auth": auth, **more}
        given = {name: value for name, value in given.items() if value is not None}
        return tasks_http_client(library=library, **options | given)

    return factory


def _library(name: Library | None) -> Any:
    if name not in (None, "httpx", "httpx2"):
        raise ValueError(f'library must be "httpx2" or "httpx", got {name!r}')
    if name is None:
        name = "httpx2" if find_spec("httpx2") is not None else "httpx"
    module: ModuleType = import_module(name)
    return module
