"""Checks that a client and its workers run the same versions, so that results are bit-identical."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from cml_engine.errors import InputError

if TYPE_CHECKING:
    from distributed import Client

PACKAGES = ("cml_engine", "distributed", "dask", "zarr", "numpy")


def own_versions() -> dict[str, str]:
    """Returns the versions of Python (without the patch level) and of ``PACKAGES`` by name."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"python": python, **{name: import_module(name).__version__ for name in PACKAGES}}


def check_versions(client: Client) -> dict[str, str]:
    """Returns the client's versions by package; raises :class:`InputError` if a worker's differ."""
    here = own_versions()
    for address, there in sorted(client.run(own_versions, on_error="return").items()):
        if isinstance(there, BaseException):
            raise InputError(
                f"worker {address} cannot load this version of cml_engine, {here['cml_engine']} "
                f"({type(there).__name__}: {there}): install the same there, with the extra 'bake'"
            )
        check_same_versions(here, there, f"worker {address}")
    return here


def check_same_versions(
    wanted: Mapping[str, str], found: Mapping[str, str], worker: str = "this worker"
) -> None:
    """Raises :class:`InputError` that names the first package whose version differs.

    ``wanted`` has the client's versions, ``found`` the worker's, by package.
    """
    for package, version in wanted.items():
        if found[package] != version:
            raise InputError(
                f"{worker} has {package} {found[package]}, the client {version}: install the same "
                "version on both"
            )
