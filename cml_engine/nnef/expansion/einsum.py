"""Expands ``einsum`` to transpose, reshape and matmul.

No NNEF fragment can express it in general, so a fragment is written for each call's equation and
shapes. It combines two operands at a time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from cml_engine.errors import ShapeError

_FORM = re.compile(r"[A-Za-z]*(,[A-Za-z]*)*(->[A-Za-z]*)?")


def einsum_fragment(equation: str, shapes: Sequence[Sequence[int]]) -> str:
    """Returns the NNEF text of a fragment ``einsum`` for an equation and operand shapes."""
    terms, result = _parse(equation)
    writer = _Writer(_extents(terms, shapes))
    name, labels = "inputs[0]", terms[0]
    for i, operand_labels in enumerate(terms[1:], 1):
        remaining = result + "".join(terms[i + 1 :])
        name, labels = writer.product((name, labels), (f"inputs[{i}]", operand_labels), remaining)
    name, labels = writer.summed(name, labels, result)
    name = writer.ordered(name, labels, result)
    body = "".join(f"    {line}\n" for line in (*writer.lines, f"output = {name};"))
    return (
        "fragment einsum(inputs: tensor<scalar>[], equation: string) -> (output: tensor<scalar>)\n"
        f"{{\n{body}}}\n"
    )


def _parse(equation: str) -> tuple[list[str], str]:
    """Returns the labels of each operand and of the result, such as ``["bct", "bcs"], "bts"``.

    Without an arrow the result has the labels that occur once, sorted.
    """
    text = equation.replace(" ", "")
    if not _FORM.fullmatch(text):
        raise ShapeError(f"einsum: equation '{equation}', wanted letters as in 'bct,bcs->bts'")
    operands, arrow, result = text.partition("->")
    if not arrow:
        result = "".join(sorted(c for c in set(operands) - {","} if operands.count(c) == 1))
    terms = operands.split(",")
    for labels in (*terms, result):
        if len(set(labels)) < len(labels):
            raise ShapeError(f"einsum: equation '{equation}' has an index twice in '{labels}'")
    if unknown := set(result) - set(operands):
        raise ShapeError(f"einsum: equation '{equation}': no operand has index '{min(unknown)}'")
    return terms, result


def _extents(terms: list[str], shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    if len(terms) != len(shapes):
        raise ShapeError(
            f"einsum: the equation has {len(terms)} operands, got {len(shapes)} tensors"
        )
    extents: dict[str, int] = {}
    for labels, shape in zip(terms, shapes, strict=True):
        if len(labels) != len(shape):
            raise ShapeError(f"einsum: '{labels}' wants rank {len(labels)}, got {list(shape)}")
        for label, extent in zip(labels, shape, strict=True):
            if extents.setdefault(label, extent) != extent:
                raise ShapeError(f"einsum: index '{label}' is {extents[label]} and {extent}")
    return extents


@dataclass
class _Writer:
    """The lines of a fragment's body under construction; every step names its result.

    An operand is a name and its labels, one per axis.
    """

    extents: dict[str, int]
    lines: list[str] = field(default_factory=list)

    def step(self, expression: str) -> str:
        name = f"t{len(self.lines)}"
        self.lines.append(f"{name} = {expression};")
        return name

    def summed(self, name: str, labels: str, keep: str) -> tuple[str, str]:
        """Sums an operand over every label that is not in ``keep``; returns its name and labels."""
        axes = [i for i, label in enumerate(labels) if label not in keep]
        if axes:
            name = self.step(f"squeeze(sum_reduce({name}, axes = {axes}), axes = {axes})")
        return name, "".join(label for label in labels if label in keep)

    def ordered(self, name: str, labels: str, order: str) -> str:
        if labels == order:
            return name
        return self.step(f"transpose({name}, axes = {[labels.index(x) for x in order]})")

    def shaped(self, name: str, labels: str, groups: Sequence[str]) -> str:
        """Reshapes groups of neighbouring labels to one axis each and returns the result's name.

        An empty group gives an axis of 1.
        """
        if [len(g) for g in groups] == [1] * len(labels):
            return name
        shape = [prod(self.extents[x] for x in group) for group in groups]
        return self.step(f"reshape({name}, shape = {shape})")

    def product(self, a: tuple[str, str], b: tuple[str, str], remaining: str) -> tuple[str, str]:
        """Multiplies two operands with one matmul and returns the result's name and labels.

        Labels that neither ``remaining`` nor the other operand has are summed.
        """
        a, b = self.summed(*a, remaining + b[1]), self.summed(*b, remaining + a[1])
        batch = [x for x in a[1] if x in b[1] and x in remaining]
        inner = "".join(x for x in a[1] if x in b[1] and x not in remaining)
        rows = "".join(x for x in a[1] if x not in b[1])
        columns = "".join(x for x in b[1] if x not in a[1])
        left_matrix, is_a_transposed = self._side(a, batch, rows, inner)
        right_matrix, is_b_plain = self._side(b, batch, columns, inner)
        flags = f"transposeA = {_text(is_a_transposed)}, transposeB = {_text(not is_b_plain)}"
        name = self.step(f"matmul({left_matrix}, {right_matrix}, {flags})")
        labels = "".join(batch) + rows + columns
        if len(rows) != 1 or len(columns) != 1:
            name = self.step(f"reshape({name}, shape = {[self.extents[x] for x in labels]})")
        return name, labels

    def _side(
        self, operand: tuple[str, str], batch: list[str], free: str, inner: str
    ) -> tuple[str, bool]:
        """Returns the name of an operand as a matrix [batch, free, inner], and False.

        Returns [batch, inner, free] and True if the operand is stored that way.
        """
        name, labels = operand
        groups = [*batch, inner, free]
        is_transposed = labels == "".join(groups)
        if not is_transposed:
            groups = [*batch, free, inner]
            name = self.ordered(name, labels, "".join(groups))
        return self.shaped(name, "".join(groups), groups), is_transposed


def _text(flag: bool) -> str:
    return str(flag).lower()
