"""Tests of ``Once``, a value that a process creates once and threads share."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from cml_engine.ops.common.once import Once


def test_threads_that_come_at_once_get_the_same() -> None:
    made, start = [], Barrier(4)

    @Once
    def thing() -> object:
        made.append(1)
        time.sleep(0.02)  # the other threads arrive meanwhile
        return object()

    def ask(_: int) -> object:
        start.wait(10)
        return thing()

    with ThreadPoolExecutor(4) as threads:
        found = set(threads.map(ask, range(4)))
    assert len(found) == len(made) == 1
    thing.forget()
    assert thing() not in found and len(made) == 2


def test_what_could_not_be_made_is_tried_again() -> None:
    asked = []

    @Once
    def thing() -> int:
        asked.append(1)
        return 6 // (len(asked) - 1)

    with pytest.raises(ZeroDivisionError):
        thing()
    assert thing() == 6


def test_a_forked_process_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    thing = Once(object)
    before = thing()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert thing() is not before
