"""Kernel variants: one object for each of several ways to compute an operator on the GPU.

A variant is a Python module and an HLSL file. The module adds a :class:`KernelVariant` to its
family's list. From that list come the first choice and the options of the tuner, the names that
plans and tables show, the tests of every variant, the benchmark and ``cml ops --kernels``.
See CONTRIBUTING.md, "A kernel variant".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from graphlib import TopologicalSorter
from typing import Any, Generic, Protocol, TypeVar

from cml_engine.ops.declaration.choice import Choice, TunedChoice, VariantTable
from cml_engine.ops.declaration.lowering import Lowering
from cml_engine.ops.declaration.packing import SCALES_AT
from cml_engine.ops.declaration.registry import load_families
from cml_engine.ops.declaration.spec import Case, Dispatch, Kernel


class Problem(Protocol):
    """The interface of a node that is being lowered: all variants of a family read it."""

    @property
    def op(self) -> Lowering: ...


#: a node, and the tile of a variant
N = TypeVar("N", bound=Problem)
T = TypeVar("T")


def always(_: object) -> bool:
    """Returns True for every node: the default ``is_possible`` of a variant."""
    return True


def no_tile(_: object) -> Any:
    """Returns None, the tile of a kernel that can be launched in one way only."""
    return None


def no_others(_: object) -> tuple[()]:
    """Returns no tiles: the tuner has none to measure beside the default tile."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelVariant(Generic[N, T]):
    """One implementation of the operators of a family.

    Parameters
    ----------
    name : the name in plans, tuning tables and tests, before the tile.
    about : a short description for ``cml ops --kernels``.
    kernel : its HLSL file and parameters.
    lower : returns the node's dispatches with a tile.
    default_tile : returns the default tile.
    is_possible : returns True if the variant can compute the node.
    is_faster : returns True if the variant should be the fastest possible one. The first variant
        that returns True is the default; ``before`` names the variants that are asked after it.
    tiles : returns further tiles for the tuner to measure.
    always_used : True if the variant is always used where it is possible, and not tuned.
    rows : the number of neighbouring result rows that share inputs; separately computed parts begin
        and end at multiples of it.
    examples : nodes for its tests, ``(operator, case)``; the case's note describes its purpose.
    """

    name: str
    about: str
    kernel: Kernel
    lower: Callable[[N, T], Iterator[Dispatch]]
    default_tile: Callable[[N], T] = no_tile
    is_possible: Callable[[N], bool] = always
    is_faster: Callable[[N], bool] = always
    before: tuple[str, ...] = ()
    tiles: Callable[[N], Iterable[T]] = no_others
    always_used: bool = False
    rows: int = 1
    examples: tuple[tuple[str, Case], ...] = ()

    def of_changed(self, change: Callable[[N], N], **fields: Any) -> KernelVariant[N, T]:
        """Returns a variant that computes a node as this one computes ``change(node)``.

        ``fields`` are those that differ otherwise; it has no examples.
        """
        stated = {
            "lower": lambda node, tile: self.lower(change(node), tile),
            "default_tile": lambda node: self.default_tile(change(node)),
            "is_possible": lambda node: self.is_possible(change(node)),
            "tiles": lambda node: self.tiles(change(node)),
            "examples": (),
        }
        return replace(self, **{**stated, **fields})

    def option(self, tile: T) -> str:
        """Returns the variant's name with the tile, as tables have it: ``tile 8x4 by 64``."""
        return self.name if tile is None else f"{self.name} {tile}"

    def find_candidates(self, node: N) -> list[T]:
        """Returns the tiles that the tuner measures for the node.

        The default tile comes first if it is one of them and this variant should be the fastest.
        """
        tiles = list(self.tiles(node))
        if self.is_faster(node) and (default := self.default_tile(node)) in tiles:
            tiles.sort(key=lambda tile: tile != default)
        return tiles

    def forced(self, choices: Iterable[Choice]) -> VariantTable:
        """Returns a table that chooses this variant's first option wherever it has one."""
        picks = {}
        for choice in choices:
            matching = (o for o in choice.options if f"{o} ".startswith(f"{self.name} "))
            if (option := next(matching, None)) is not None:
                picks[choice.key] = TunedChoice(option)
        return VariantTable(picks)


class KernelFamily(Generic[N]):
    """The kernel variants that compute some operators, and the choice between them.

    ``key`` returns the text of everything that decides which variant is fastest, see
    :class:`Choice`.
    """

    def __init__(self, name: str, key: Callable[[N], str] = str) -> None:
        self.name, self.key = name, key
        self._added: dict[str, KernelVariant[N, Any]] = {}
        FAMILIES[name] = self

    def add(self, variant: KernelVariant[N, Any]) -> None:
        """Adds a variant to the family; each variant's module calls this once.

        Raises ``ValueError`` if the family has a variant of that name.
        """
        if variant.name in self._added:
            raise ValueError(f"{self.name} has a kernel variant '{variant.name}' already")
        self._added[variant.name] = variant

    @cached_property
    def variants(self) -> tuple[KernelVariant[N, Any], ...]:
        """All variants in the order in which the default is chosen."""
        load_families()
        order = TopologicalSorter[str](dict.fromkeys(sorted(self._added), ()))
        for name, variant in self._added.items():
            for follower in variant.before:
                if follower not in self._added:
                    raise ValueError(f"{self.name}: '{name}' is before '{follower}', which is none")
                order.add(follower, name)
        ordered = [self._added[name] for name in order.static_order()]
        return tuple(sorted(ordered, key=lambda variant: not variant.always_used))

    def lower(self, node: N) -> Iterator[Dispatch]:
        """Yields the node's dispatches by the chosen variant and tile.

        The choice is the tuning table's or the caller's; by default it is the first possible
        variant that should be the fastest, with its default tile.
        """
        possible = [variant for variant in self.variants if variant.is_possible(node)]
        first = next(variant for variant in possible if variant.is_faster(node))
        default = (first, first.default_tile(node))
        name = first.option(default[1])
        options = {name: default}
        if not first.always_used:
            for variant in possible:
                options |= {variant.option(t): (variant, t) for t in variant.find_candidates(node)}
                if node.op.requested_kernel.startswith(
                    variant.name
                ):  # whether or not it is worth a try
                    tile = variant.default_tile(node)
                    options.setdefault(variant.option(tile), (variant, tile))
            choices = {option: (option, *choice) for option, choice in options.items()}
            name, variant, tile = node.op.choose(self.key(node), choices, name)
            if not variant.is_possible(node):
                raise node.op.refuse(f"cannot have the kernel '{name}' of the whole")
        else:
            variant, tile = default
        for dispatch in variant.lower(node, tile):
            kernel, label = dispatch.kernel or variant.kernel, dispatch.variant or name
            if SCALES_AT in dispatch.params:
                kernel = replace(kernel, params=f"{kernel.params} {SCALES_AT}:u")
            yield replace(dispatch, kernel=kernel, variant=label)


#: the kernel families by name; importing a family's module adds it
FAMILIES: dict[str, KernelFamily[Any]] = {}


def kernel_families() -> tuple[KernelFamily[Any], ...]:
    """Returns all kernel families, sorted by name, after importing all variants."""
    load_families()
    return tuple(FAMILIES[name] for name in sorted(FAMILIES))


def rows_of(option: str) -> int:
    """Returns ``rows`` of the variant that an option's name begins with; 1 if there is none."""
    variants = (variant for family in kernel_families() for variant in family.variants)
    return next((v.rows for v in variants if f"{option} ".startswith(f"{v.name} ")), 1)
