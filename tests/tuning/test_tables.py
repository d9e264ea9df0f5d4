"""Tests of kernel variant tables and of the paired benchmarks that fill them, without a GPU."""

import json
import random
import warnings

import pytest

from cml_engine.compiler import tuning_tables as tables
from cml_engine.compiler.tuning_tables import Record, records_in, save, table_for
from cml_engine.errors import InputError
from cml_engine.io.data_folders import tuning_file
from cml_engine.ops.declaration.choice import TunedChoice, VariantTable
from cml_engine.tuning.trial import Trial
from tests.fixtures import hostile_json

DEVICE = "some GPU (driver 1.2)"
RECORD = Record("conv 3x3", "a", "b", {"a": 2.0, "b": 1.0}, 0.5, 9, "net, conv 'y'")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CML_TUNING_DIR", str(tmp_path))
    return tmp_path


def decide(true_ms, *, rounds=9, noise=0.0, seed=0):
    """Runs a trial of options to its end; returns the trial and its number of measured pairs.

    ``true_ms`` has the true times by option. Each measurement has lognormal noise.
    """
    generator = random.Random(seed)
    trial = Trial("a", tuple(true_ms), rounds)
    count = 0
    while pair := trial.next():
        count += 1
        trial.record({name: true_ms[name] * generator.lognormvariate(0, noise) for name in pair})
    return trial, count


def test_the_fastest_option_wins_and_says_by_how_much():
    trial, _ = decide({"a": 2.0, "b": 1.5, "c": 1.0, "d": 3.0})
    assert trial.winner == "c"
    assert trial.ratio("c") == 0.5 and trial.ratio("b") == 0.75
    assert trial.ms() == {"a": 2.0, "b": 1.5, "c": 1.0, "d": 3.0}


def test_slow_option_is_dropped_early():
    _, count = decide({"a": 1.0, "b": 2.0}, rounds=50)
    assert count == 1 + 3


@pytest.mark.parametrize("seed", range(20))
def test_no_option_wins_by_luck(seed):
    """The default wins over ten other options that are equally fast and measured with 10 %
    noise."""
    trial, _ = decide(dict.fromkeys("abcdefghijk", 1.0), rounds=9, noise=0.1, seed=seed)
    assert trial.winner == "a"


def test_a_real_gain_is_found_under_noise():
    found = [decide({"a": 1.0, "b": 0.7}, noise=0.15, seed=s)[0].winner for s in range(20)]
    assert found.count("b") >= 18


def test_a_kernel_that_cannot_be_timed_is_left_out():
    trial = Trial("a", ("a", "b", "c"), rounds=4)
    assert trial.next() == ("a", "b")
    trial.drop("b", "no memory")
    while pair := trial.next():
        trial.record({"a": 2.0, "c": 1.0} if "c" in pair else {})
    assert trial.winner == "c" and trial.dropped == {"b": "no memory"}
    assert "b" not in trial.ms()
    trial = Trial("a", ("a", "b"))
    trial.drop("a", "lost device")
    assert trial.next() is None and trial.winner == "a" and trial.ms() == {}


def test_zero_times_are_not_recorded():
    trial = Trial("a", ("a", "b"), rounds=3)
    for ms in (1.0, 0.0, 0.0):
        trial.record({"a": 1.0, "b": ms})
    assert trial.pairs["b"].rounds == []


def test_a_table_is_written_and_read(folder):
    assert table_for(DEVICE).name_for("conv 3x3", ("a", "b"), "a") == "a"
    file = save(DEVICE, [RECORD])
    assert file == tuning_file(DEVICE) and file.parent == folder
    assert records_in(file.read_text())["conv 3x3"] == RECORD
    table = table_for(DEVICE)
    assert table.name_for("conv 3x3", ("a", "b"), "a") == "b"
    assert json.loads(file.read_text())["device"] == DEVICE


def test_saving_merges_and_replaces_equal_keys():
    save(DEVICE, [RECORD])
    other = Record("conv 5x5", "a", "a", {"a": 1.0}, 1.0, 9, "net")
    again = Record("conv 3x3", "a", "a", {"a": 1.0, "b": 1.1}, 1.0, 9, "net")
    save(DEVICE, [other, again])
    assert tables.measured(DEVICE) == {"conv 3x3": again, "conv 5x5": other}


def table_of(choice=(), **changes):
    """Returns a table of one choice, with these changes to the choice and to the table."""
    choices = {"k": {**RECORD.to_json(), **dict(choice)}}
    return {"format": tables.FORMAT, "device": DEVICE, "choices": choices, **changes}


BAD = {
    "another format": table_of(format="cml variant table 0"),
    "a choice that was not measured": table_of({"chosen": "z"}),
    "another device's": table_of(device="other"),
}


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe\x00", *(json.dumps(table).encode() for table in BAD.values())],
    ids=["bytes that are no text", *BAD],
)
def test_a_bad_table_is_ignored_and_named(content):
    file = tuning_file(DEVICE)
    file.write_bytes(content)
    with pytest.warns(RuntimeWarning, match="is ignored") as caught:
        assert len(table_for(DEVICE)) == 0
    assert str(file) in str(caught[0].message)
    with warnings.catch_warnings():  # the file is not read a second time
        warnings.simplefilter("error")
        table_for(DEVICE)


def test_no_content_of_a_table_is_more_than_a_warning():
    refused = 0
    for text in hostile_json.texts(table_of()):
        tuning_file(DEVICE).write_text(text)
        tables._read_tables.clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            table = table_for(DEVICE)
        assert table.name_for("k", ("a", "b"), "a") in ("a", "b")
        if caught:
            assert "is ignored" in str(caught[0].message) and len(table) == 0
        refused += len(caught)
    assert refused > 50


def test_unwritable_table_is_reported_before_measuring(folder):
    tables.check_place(DEVICE)
    tuning_file(DEVICE).mkdir()
    with pytest.raises(InputError, match="cannot write the table .*some-gpu.*Is a directory"):
        tables.check_place(DEVICE)


def test_tuned_choice_applies_only_to_the_default_it_beat():
    table = VariantTable({"k": TunedChoice("b", "a")})
    assert table.name_for("k", ("a", "b"), "a") == "b"
    assert table.name_for("k", ("a", "b", "c"), "c") == "c", "a new default may be faster still"
    assert table.name_for("k", ("a", "c"), "a") == "a", "an option that is gone"
    assert VariantTable.forcing("k", "b").name_for("k", ("a", "b", "c"), "c") == "b"


def test_shipped_tables_can_be_read_and_chosen_by_device():
    shipped = list(tables._DEFAULTS.glob("*.json"))
    assert shipped
    for path in shipped:
        data = json.loads(path.read_text(encoding="utf-8"))
        assert data["devices"] and data["source"]
        assert all(record.won for record in records_in(path.read_text(encoding="utf-8")).values())
