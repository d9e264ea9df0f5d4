"""Tests that Python, C and JavaScript have the same names: snake_case, ``cml_`` before it in C, and
camelCase in JavaScript."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

import cml_engine as cml
from cml_engine import FrameScheduler
from cml_engine.scheduler.frame_timings import BackOff
from cml_engine.scheduler.jobs.job import Job
from tests.players.building import PLAYER
from tests.players.deno import WEB

C = "".join(file.read_text() for file in sorted((PLAYER / "include").glob("*.h")))
C_CORE = "".join(file.read_text() for file in sorted((PLAYER / "src").glob("*.[ch]")))
TYPES = (WEB / "cml.d.ts").read_text()


def camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda match: match[1].upper(), name)


#: what all three offer, by the object in Python that has it
CALLS = {
    cml: ["load_cooked"],
    FrameScheduler: ["submit", "encode", "end_frame", "abandon_frame"],
    Job: ["cancel", "pause", "release", "read"],
}


@pytest.mark.parametrize("name", [name for names in CALLS.values() for name in names])
def test_calls_have_the_same_names(name):
    (owner,) = [owner for owner, names in CALLS.items() if name in names]
    assert callable(getattr(owner, name))
    assert re.search(rf"\bcml_{name}\(", C), "C"
    assert re.search(rf"\b{camel(name)}\(", TYPES), "JavaScript"


@pytest.mark.parametrize("name", ["frame_ms", "budget_ms", "over_share", "policy"])
def test_a_scheduler_is_made_with_the_same_options(name):
    assert f" {name}" in C.split("typedef struct cml_options {")[1].split("} cml_options;")[0]
    options = TYPES.split("export interface SchedulerOptions {")[1].split("\n}")[0]
    assert f" {camel(name)}?:" in options


@pytest.mark.parametrize("name", ["priority", "deadline_ms", "slot"])
def test_a_job_is_submitted_with_the_same_options(name):
    assert (
        f"{name};" in C.split("typedef struct cml_job_options {")[1].split("} cml_job_options;")[0]
    )
    options = TYPES.split("export interface SubmitOptions {")[1].split("\n}")[0]
    assert f" {camel(name)}?:" in options


def test_the_state_of_the_back_off_has_the_same_names():
    names = {field.name for field in fields(BackOff)} - {"factor", "frame_ms"}
    assert {"skip_due", "since_skip", "without"} < names
    state = C_CORE.split("struct cml_scheduler {")[1].split("};")[0]
    assert [n for n in names if not re.search(rf"\b{n}\b", state)] == []


def test_reports_have_the_same_reasons():
    reasons = re.findall(r"CML_REASON_(\w+)", C)
    said = re.findall(r'\| "([\w ]+)"', TYPES.split("export type Reason =")[1].split(";")[0])
    assert sorted(reason.replace("_", " ").lower() for reason in reasons) == sorted(
        reason.lower() for reason in said
    )
