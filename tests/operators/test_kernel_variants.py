"""Tests of kernel families: the order of variants, the default, a node's options, tiles, and
declarations."""

from dataclasses import dataclass, field

import pytest

from cml_engine.ir.limits import Limits
from cml_engine.ops.declaration import variant as variants
from cml_engine.ops.declaration.choice import NO_VARIANTS, Choice, VariantTable
from cml_engine.ops.declaration.spec import Dispatch, Kernel
from cml_engine.ops.declaration.variant import KernelFamily, KernelVariant, kernel_families
from cml_engine.ops.kernel_files import kernel_file
from cml_engine.ops.matmul import matmul as _matmul  # noqa: F401
from cml_engine.ops.matmul.kernels.matmul import expected_time, tiles_for


@dataclass
class Op:
    """A stand-in for the lowering of a node: ``choose`` takes an option from ``table`` and
    records it."""

    table: VariantTable = NO_VARIANTS
    choices: list[Choice] = field(default_factory=list)
    requested_kernel: str = ""

    def choose(self, key, options, default):
        chosen = self.table.name_for(key, tuple(options), default)
        self.choices.append(Choice("node", key, tuple(options), default, chosen))
        return options[chosen]


@dataclass
class Node:
    op: Op
    size: int


@pytest.fixture
def family(monkeypatch):
    monkeypatch.setattr(variants, "FAMILIES", dict(variants.FAMILIES))
    return KernelFamily("test", lambda node: f"test {node.size}")


def add(family, name, **changes):
    def lower(node, tile):
        yield Dispatch(groups=tile or 1, tensors=("y",))

    family.add(KernelVariant(name=name, about="", kernel=Kernel(f"{name}.hlsl"), lower=lower,
                             **changes))  # fmt: skip


def run(family, size=8, table=NO_VARIANTS):
    op = Op(table)
    (dispatch,) = family.lower(Node(op, size))
    return dispatch, op.choices


def test_variant_rules_run_in_declared_order(family):
    add(family, "common", default_tile=lambda n: 4)
    add(
        family,
        "rare",
        is_possible=lambda n: n.size > 4,
        before=("common",),
        default_tile=lambda n: 2,
    )
    add(family, "never", is_faster=lambda n: False, before=("rare",), tiles=lambda n: (1,))
    assert [v.name for v in family.variants] == ["never", "rare", "common"]
    dispatch, (choice,) = run(family)
    assert (dispatch.variant, dispatch.kernel.path, dispatch.groups) == ("rare 2", "rare.hlsl", 2)
    assert (choice.key, choice.default, choice.options) == (
        "test 8",
        "rare 2",
        ("rare 2", "never 1"),
    )
    assert run(family, 3)[0].variant == "common 4"


def test_table_choice_is_used_only_if_possible(family):
    add(family, "common", default_tile=lambda n: 4, tiles=lambda n: (2, 4, 8))
    add(
        family,
        "large",
        is_possible=lambda n: n.size > 4,
        is_faster=lambda n: False,
        tiles=lambda n: (1,),
    )
    _, (choice,) = run(family)
    assert choice.options == ("common 4", "common 2", "common 8", "large 1")
    large = next(v for v in family.variants if v.name == "large")
    table = large.forced([choice])
    assert run(family, 8, table)[0].variant == "large 1"
    assert run(family, 3, VariantTable.forcing("test 3", "large 1"))[0].variant == "common 4"


def test_single_possible_variant_offers_no_choice(family):
    add(family, "common", tiles=lambda n: (1, 2))
    add(family, "long", is_possible=lambda n: n.size > 4, always_used=True)
    dispatch, choices = run(family)
    assert (dispatch.variant, choices) == ("long", [])


def test_duplicate_variant_names_and_unknown_order_are_refused(family):
    add(family, "common", before=("other",))
    with pytest.raises(ValueError, match="'common' already"):
        add(family, "common")
    with pytest.raises(ValueError, match="'common' is before 'other', which is none"):
        run(family)


@pytest.mark.parametrize("family", kernel_families(), ids=lambda family: family.name)
def test_every_declared_variant_has_a_shader_and_a_line(family):
    for variant in family.variants:
        assert kernel_file(variant.kernel.path) is not None, variant.name
        assert variant.about and not variant.about.endswith(".")


@pytest.mark.parametrize(
    "limits",
    [Limits(), Limits(software=True), *(Limits(software=True, subgroup_size=n) for n in (8, 16))],
)
def test_the_tile_fits_the_result(limits):
    def quickest(*extents):
        return min(tiles_for(limits), key=lambda tile: expected_time(tile, *extents, 1, limits))

    large = quickest(2048, 2048, 2048)
    assert large.rows * large.cols >= 64
    assert quickest(1, 512, 512).rows <= 2
    assert quickest(4, 512, 512).height < large.height
