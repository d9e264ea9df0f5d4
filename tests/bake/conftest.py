"""The cluster that the tests of bakes share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def client() -> Iterator[Any]:
    """A client of a cluster of two workers on this machine."""
    pytest.importorskip("distributed")
    from cml_engine.distributed.cluster import connect

    with connect(workers=2) as (cluster_client, _):
        yield cluster_client
