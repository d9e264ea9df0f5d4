"""The lowering of an operator's node to dispatches: the services that a kernel's ``lower`` uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from cml_engine.errors import InputError, OperatorError, ShapeError
from cml_engine.ir.graph import (
    DTYPE_OF_KIND,
    NUMPY_DTYPE,
    Array,
    Attrs,
    Epilogue,
    Fact,
    Graph,
    Node,
    is_whole,
)
from cml_engine.ir.layout import BLOCKED, PLAIN, VECTOR_TYPE, stored_bytes, words
from cml_engine.ir.limits import Limits
from cml_engine.ops.declaration import accessors
from cml_engine.ops.declaration.checks import fault
from cml_engine.ops.declaration.choice import NO_VARIANTS, Choice, VariantTable
from cml_engine.ops.declaration.packing import Packing
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.declaration.spec import GROUP, Cost, Dispatch, Kernel

T = TypeVar("T")

#: the most iterations of all loops of one thread together. Mesa's software driver counts the
#: iterations of all loops that a thread runs, consecutive or nested, and silently ends every loop
#: after 65 535. A kernel that may need more works in several dispatches.
MOST_TURNS = 60_000
#: iterations that the driver counts in addition each time an inner loop runs: measured up to 3
LOOP_TURNS = 4


@dataclass
class Lowering:
    """The lowering of one node: its facts, layouts, packed weights and scratch memory.

    ``inputs`` and ``outputs`` are facts in NNEF's axis order (NCHW), for any layout.
    """

    graph: Graph
    node: Node
    limits: Limits
    layouts: dict[str, str]
    #: packed weights made so far, by name; shared by the whole plan so that equal ones meet
    packed: dict[str, Array]
    #: scratch tensors of this node: name -> number of 32-bit words
    scratch_words: dict[str, int] = field(default_factory=dict)
    #: the kernels that a table prefers, and the choices so far
    variants: VariantTable = NO_VARIANTS
    choices: list[Choice] = field(default_factory=list)
    #: the kernel that the caller wants of the node, with or without its tile
    requested_kernel: str = ""
    #: the number of parts in which the caller requests each tensor to be bound
    requested_parts: Mapping[str, str] = field(default_factory=dict)
    #: the kernels that the node chose at other shapes, and the constants that it packed
    kept: list[str] = field(default_factory=list)
    known: Mapping[str, Array] = field(default_factory=dict)
    #: the choices so far (name, option); and the required choices, in the same order, if the node
    #: computes a part of another node
    chosen: list[tuple[str, Any]] = field(default_factory=list)
    pinned: list[tuple[str, Any]] = field(default_factory=list)

    @property
    def attrs(self) -> Attrs:
        return self.node.attrs

    @property
    def in_names(self) -> tuple[str, ...]:
        return self.node.inputs

    @property
    def out_names(self) -> tuple[str, ...]:
        return self.node.outputs

    @property
    def inputs(self) -> list[Fact]:
        return [self.graph.facts[name] for name in self.node.inputs]

    @property
    def outputs(self) -> list[Fact]:
        return [self.graph.facts[name] for name in self.node.outputs]

    @property
    def epilogues(self) -> tuple[Epilogue, ...]:
        return self.node.epilogues

    def fact(self, name: str) -> Fact:
        return self.graph.facts[name]

    def layout(self, name: str) -> str:
        """Returns the tensor's memory layout: ``"plain"`` (row-major), ``"c4"``, …."""
        return self.layouts.get(name, PLAIN)

    def is_blocked(self, name: str) -> bool:
        """Returns True if the tensor is stored in blocks of four channels."""
        return self.layout(name) in BLOCKED

    def vector_type(self, name: str) -> str:
        """Returns the HLSL type of one load from the tensor in its layout."""
        return VECTOR_TYPE[self.layout(name)]

    def constant(self, name: str) -> Array | None:
        """Returns the value of a tensor that is a constant, otherwise None."""
        return self.graph.constants[name] if self.graph.is_constant(name) else None

    def pack(self, key: str, make: Callable[[], Array | Packing]) -> str:
        """Adds a constant with the value ``make()`` to the plan and returns its name, ``key``.

        ``key`` and the node's constants must determine the value: a value with a known key is
        reused, also at other shapes. The constant is bound like any tensor.
        """
        if lookup(self.node.op).is_custom:
            self._pack_for_game(key, make)
        elif key not in self.packed:
            if (known := self.known.get(key)) is None:
                made = make()
                known = made.array() if isinstance(made, Packing) else np.ascontiguousarray(made)
            self.packed[key] = known
        return key

    def _pack_for_game(self, key: str, make: Callable[[], Array | Packing]) -> None:
        """Adds a constant of a game's operator to the plan, with types of at most 32 bits.

        Raises an error if the key is the name of a tensor, or has another value in another node.
        """
        made = np.ascontiguousarray(make())
        if made.dtype.kind not in DTYPE_OF_KIND:
            raise self._fault(f"pack('{key}') wants numbers or truth values, got {made.dtype}")
        if made.dtype.itemsize > 4:
            made = made.astype(NUMPY_DTYPE[DTYPE_OF_KIND[made.dtype.kind]])
        if key in self.graph.facts:
            raise self._fault(f"pack('{key}'): the model has a tensor of that name; use another")
        if not np.array_equal(self.packed.setdefault(key, made), made):
            raise self._fault(
                f"pack('{key}') means other numbers in another node; put what they depend on into "
                "the key"
            )

    def _fault(self, what: str) -> OperatorError:
        return fault(lookup(self.node.op), f"{self.node.title}: {what}", self.node.source)

    def nbytes(self, name: str) -> int:
        """Returns the size in bytes of a tensor that the node binds, also packed or scratch."""
        if name in self.scratch_words:
            return 4 * self.scratch_words[name]
        array = self.packed.get(name, self.graph.constants.get(name))
        if array is not None:
            return stored_bytes(array)
        return 4 * words(self.fact(name), self.layout(name))

    def scratch(self, words: int) -> str:
        """Allocates a temporary tensor of ``words`` 32-bit elements and returns its name.

        It lives during this node only.
        """
        if not is_whole(words) or words < 0:
            raise self._fault(f"scratch({words!r}): wanted a whole number of 32-bit words")
        name = f"{self.node.outputs[0]}.scratch{len(self.scratch_words)}"
        self.scratch_words[name] = words
        return name

    def choose(self, key: str, options: Mapping[str, T], default: str) -> T:
        """Returns the value of an option: the variant table's for ``key``, or the default.

        A kernel that the caller requested comes first. Each option must give a correct kernel.
        The key (:class:`Choice`) and the options may only depend on the node and the limits, so
        that a tuner finds them again. A network at other shapes keeps the first choices, so that
        its packed weights stay valid.
        """
        if self.pinned:
            pinned: T = self.pinned.pop(0)[1]
            return pinned
        chosen = self.kept.pop(0) if self.kept else ""
        if chosen not in options:
            chosen = self.variants.name_for(key, tuple(options), default)
        if self.requested_kernel:
            chosen = self._requested_option(options, chosen)
        requested = bool(self.requested_kernel)
        choice = Choice(self.node.title, key, tuple(options), default, chosen, requested)
        self.choices.append(choice)
        self.chosen.append((chosen, options[chosen]))
        return options[chosen]

    def _requested_option(self, options: Mapping[str, T], usual: str) -> str:
        """Returns the name of the option that the caller requested.

        Raises :class:`InputError` if none fits. If the request names a kernel without a tile,
        the option ``usual`` is preferred.
        """
        wanted = self.requested_kernel
        fits = [o for o in (usual, *options) if o == wanted or o.startswith(f"{wanted} ")]
        if not fits:
            raise InputError(
                f"decide: {self.node.title} cannot have the kernel '{wanted}': here it can be "
                f"{', '.join(options)}",
                self.node.source,
            )
        return fits[0]

    def launch(
        self,
        threads: int,
        *,
        reads: Mapping[str, str],
        writes: Mapping[str, str],
        kernel: Kernel | None = None,
        values: Mapping[str, Any] | None = None,
        defines: Mapping[str, int | str] | None = None,
        cost: Cost | None = None,
    ) -> Dispatch:
        """Returns one pass of a game's own operator, whose HLSL has a ``void kernel(uint thread)``.

        Parameters
        ----------
        threads : the number of threads.
        reads, writes : the tensors by their names in the shader; the values are names from
            ``in_names``, ``out_names``, :meth:`scratch` or :meth:`pack`.
        kernel : an HLSL file other than the operator's own.
        values : further numbers for the shader by name, in addition to the attributes.
        defines : defines that distinguish this pass from others of the same file: ``{"PASS": 1}``.
        cost : the cost of this pass; by default in proportion to its workgroups.
        """
        return accessors.launch(
            self, threads, reads, writes, kernel, values or {}, defines or {}, cost
        )

    def refuse(self, why: str) -> ShapeError:
        return ShapeError(f"{self.node.title}: {why}", self.node.source)


def for_each(
    op: Lowering,
    n: int,
    params: Mapping[str, Any],
    defines: Mapping[str, int | str] | None = None,
    *,
    types: str = "",
    tensors: Sequence[str] = (),
    items: int = 1,
    writes: int = 1,
    kernel: Kernel | None = None,
    cost: Cost | None = None,
) -> Dispatch:
    """Returns a dispatch with one thread per ``items`` of ``n`` elements.

    The shader receives the number of elements as ``n``. ``tensors`` are the bound tensors, by
    default all that the node reads and writes. ``types`` lists the HLSL types of the first
    tensors if they are not floats.
    """
    typed = {f"T{i}_TYPE": name for i, name in enumerate(types.split())}
    return Dispatch(
        groups=-(-n // (items * GROUP)),
        tensors=tuple(tensors) or (*op.in_names, *op.out_names),
        params={"n": n, **params},
        defines={**(defines or {}), **typed},
        writes=writes,
        kernel=kernel,
        cost=cost,
    )
