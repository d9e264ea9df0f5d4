"""Tuning measurements as readable files: one per device and driver, and the shipped defaults.

A file has the time of every option for each key, and the option that was chosen. A shipped file
(``tuning_defaults/*.json``) applies to devices whose name matches its ``devices`` regular
expression. Measurements of this machine take precedence.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cml_engine.errors import InputError
from cml_engine.errors.arguments import check_text
from cml_engine.io.atomic_write import check_writable, write_atomically
from cml_engine.io.data_folders import tuning_file
from cml_engine.io.json_files import Json, JsonObject, finite, parse_json, read_json
from cml_engine.ops.declaration.choice import NO_VARIANTS, TunedChoice, VariantTable

FORMAT = "cml variant table 1"
_DEFAULTS = Path(__file__).with_name("tuning_defaults")
_read_tables: dict[Path, VariantTable] = {}


@dataclass(frozen=True, slots=True)
class Record:
    """The measurement of one choice between kernel variants, identified by ``key``.

    ``ms`` has the time of each option tried (:meth:`Trial.ms`). ``ratio`` is the median over the
    rounds of the chosen option's time over the default's.

    Examples
    --------
    >>> ms = {"tile 8x8": 1.2, "tile 16x8": 1.0}
    >>> record = Record("conv 3x3", "tile 8", "tile 16", ms, ratio=0.83, rounds=30, source="here")
    >>> record.won
    True
    """

    key: str
    default: str
    chosen: str
    ms: Mapping[str, float]
    ratio: float
    rounds: int
    #: the model and node that were measured
    source: str

    @property
    def won(self) -> bool:
        """True if the chosen option is not the default."""
        return self.chosen != self.default

    def to_json(self) -> dict[str, Json]:
        """Returns the record as a JSON object without its key."""
        return {
            "chosen": self.chosen,
            "default": self.default,
            "ratio": round(self.ratio, 4),
            "rounds": self.rounds,
            "ms": {name: round(ms, 5) for name, ms in self.ms.items()},
            "source": self.source,
        }

    @classmethod
    def from_json(cls, key: str, data: JsonObject) -> Record:
        """Returns the record of a JSON object from :meth:`to_json`; raises ``ValueError`` if it
        is invalid."""
        try:
            ms = {name: finite(value, 0) for name, value in data["ms"].items()}
            default, chosen = str(data["default"]), str(data["chosen"])
            ratio, rounds = finite(data["ratio"], 0), int(finite(data["rounds"], 0))
            source = str(data["source"])
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"choice '{key}' is no measurement: {error!r}") from error
        if chosen not in ms:
            raise ValueError(f"choice '{key}': '{chosen}' was chosen and not measured")
        return cls(key, default, chosen, ms, ratio, rounds, source)


def table_for(device: str) -> VariantTable:
    """Returns the variant table of a device: shipped records, overridden by those measured on this
    machine.

    The file is read once, until :func:`save` writes it. A file that cannot be used is ignored
    with a warning.

    Examples
    --------
    >>> table = table_for(gpu.name)
    """
    file = tuning_file(check_text(device, "device"))
    if file not in _read_tables:
        _read_tables[file] = variants_of(known(device))
    return _read_tables[file]


def shipped_table(device: str) -> VariantTable:
    """Returns the variant table of a device from shipped records only, which is the same on
    every machine."""
    return variants_of(_shipped_records(device))


def variants_of(records: Mapping[str, Record]) -> VariantTable:
    """Returns the choices of the records, by key, as the variant table that lowering takes."""
    picks = {key: TunedChoice(record.chosen, record.default) for key, record in records.items()}
    return VariantTable(picks) if picks else NO_VARIANTS


def measured(device: str) -> dict[str, Record]:
    """Returns the records that this machine's tuning file has for the device and driver, by key.

    They are empty if there is no file; a file that cannot be used is ignored with a warning.
    """
    return _read_or_warn(tuning_file(device), device)


def known(device: str) -> dict[str, Record]:
    """Returns all records of a device by key: the shipped ones, overridden by those measured on
    this machine."""
    return {**_shipped_records(device), **measured(device)}


def save(device: str, records: Iterable[Record]) -> Path:
    """Adds records to the device's tuning file on this machine, replaces those of the same keys,
    and returns the file.

    The file is written atomically. Sessions created from now on use it.
    """
    file = tuning_file(device)
    merged = {**measured(device), **{record.key: record for record in records}}
    data = {
        "format": FORMAT,
        "device": device,
        "choices": {key: merged[key].to_json() for key in sorted(merged)},
    }
    write_atomically(file, json.dumps(data, indent=1))
    _read_tables.pop(file, None)
    return file


def check_place(device: str) -> None:
    """Raises :class:`InputError` if the device's tuning file cannot be written.

    Callers check this before they spend time measuring.
    """
    file = tuning_file(device)
    try:
        check_writable(file)
    except OSError as error:
        raise InputError(f"cannot write the table '{file}': {error.strerror}") from None


def records_in(text: str) -> dict[str, Record]:
    """Returns the records in a tuning file's text, by key; raises ``ValueError`` if the text is
    invalid."""
    return _records_of(parse_json(text))


def _records_of(data: object) -> dict[str, Record]:
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f"its format is not '{FORMAT}'")
    choices = data.get("choices")
    if not isinstance(choices, dict):
        raise ValueError("it has no choices")
    return {key: Record.from_json(key, value) for key, value in choices.items()}


def _read_or_warn(file: Path, device: str) -> dict[str, Record]:
    try:
        data = read_json(file)
        records = _records_of(data)
        if (measured_on := data.get("device")) != device:
            raise ValueError(f"it was measured on '{measured_on}', this is '{device}'")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        return _warn_ignored(file, str(error))
    return records


def _warn_ignored(file: Path, why: str) -> dict[str, Record]:
    warnings.warn(
        f"the tuning table '{file}' is ignored: {why}. `cml tune MODEL` writes a new one",
        RuntimeWarning,
        stacklevel=5,
    )
    return {}


@cache
def _shipped_records(device: str) -> dict[str, Record]:
    records: dict[str, Record] = {}
    for path in sorted(_DEFAULTS.glob("*.json")):
        text = path.read_text(encoding="utf-8")
        if re.search(json.loads(text)["devices"], device, re.IGNORECASE):
            records.update(records_in(text))
    return records
