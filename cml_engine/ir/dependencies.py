"""The dependencies between the steps of a model file: which of them some of its outputs need.

A step is a node, a layer or an assignment: the names that it reads, and the names that it writes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TypeAlias

#: the names that a step reads, and those that it writes
Step: TypeAlias = tuple[Iterable[str], Iterable[str]]


class Dependencies:
    """The steps of a model, in any order, each known by its number.

    Examples
    --------
    >>> steps = Dependencies([(["x"], ["a"]), (["a"], ["y"]), (["a"], ["z"])])
    >>> sorted(steps.needed(["z"]))
    [0, 2]
    >>> steps.unaffected(["y", "z"], [1])
    ['z']
    """

    def __init__(self, steps: Iterable[Step]) -> None:
        self._reads: list[tuple[str, ...]] = []
        self._writes: list[tuple[str, ...]] = []
        self._writers: dict[str, list[int]] = {}
        for number, (reads, writes) in enumerate(steps):
            self._reads.append(tuple(dict.fromkeys(reads)))
            self._writes.append(tuple(dict.fromkeys(writes)))
            for name in self._writes[-1]:
                self._writers.setdefault(name, []).append(number)

    @property
    def names(self) -> list[str]:
        """The names that steps write."""
        return list(self._writers)

    def writers(self, name: str) -> Sequence[int]:
        """Returns the numbers of the steps that write a name."""
        return self._writers.get(name, ())

    def reads(self, number: int) -> tuple[str, ...]:
        """Returns the names that a step reads, each once."""
        return self._reads[number]

    def needed(self, names: Iterable[str]) -> set[int]:
        """Returns the numbers of the steps on which the values of some names depend."""
        pending, found = list(names), set[int]()
        while pending:
            for number in self.writers(pending.pop()):
                if number not in found:
                    found.add(number)
                    pending += self._reads[number]
        return found

    def unaffected(self, names: Sequence[str], failed: Iterable[int]) -> list[str]:
        """Returns those of the names that depend on none of the failed steps."""
        readers: dict[str, list[int]] = {}
        for number, reads in enumerate(self._reads):
            for name in reads:
                readers.setdefault(name, []).append(number)
        pending, affected = list(failed), set[str]()
        while pending:
            for name in set(self._writes[pending.pop()]) - affected:
                affected.add(name)
                pending += readers.get(name, ())
        return [name for name in names if name not in affected]


#: the names of outputs that a message lists
_NAMED = 4


def outputs_advice(names: Collection[str]) -> str:
    """Returns the end of a message that says which outputs can be loaded nevertheless.

    It is empty without such outputs.
    """
    if not names:
        return ""
    listed = list(names)[:_NAMED]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    subject = ", ".join(f"'{name}'" for name in listed) + more
    options = " ".join(f"--output {name}" for name in listed)
    quoted = ", ".join(f'"{name}"' for name in listed)
    return (
        f". The output{'s' if len(names) > 1 else ''} {subject} can be loaded without the rest: "
        f"{options}, or cml.load(…, outputs=[{quoted}])"
    )
