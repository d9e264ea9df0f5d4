"""Tests of ``Once``, which creates a value once per process and shares it between threads."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from cml_engine.ops.common.once import Once


def test_once_gives_concurrent_threads_the_same_object():
    made, start = [], Barrier(4)

    @Once
    def thing():
        made.append(1)
        time.sleep(0.02)  # the other threads arrive meanwhile
        return object()

    def ask(_):
        start.wait(10)
        return thing()

    with ThreadPoolExecutor(4) as threads:
        found = set(threads.map(ask, range(4)))
    assert len(found) == len(made) == 1
    thing.forget()
    assert thing() not in found and len(made) == 2


def test_a_failed_creation_is_retried():
    asked = []

    @Once
    def thing():
        asked.append(1)
        return 6 // (len(asked) - 1)

    with pytest.raises(ZeroDivisionError):
        thing()
    assert thing() == 6


def test_once_is_per_process(monkeypatch):
    thing = Once(object)
    before = thing()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert thing() is not before
