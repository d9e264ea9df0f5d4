"""Cooks a graph: compiles it to the bytes of a cooked file. Equal graphs give equal bytes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib import metadata
from itertools import chain
from pathlib import Path

from cml_engine.compiler.integer.digest import gas_of, model_digest
from cml_engine.compiler.plan import Plan
from cml_engine.compiler.planning.draft import PlanOptions, Storage
from cml_engine.compiler.random_seed import with_seed
from cml_engine.compiler.tuning_tables import shipped_table
from cml_engine.cooked.golden import make_golden, write_golden
from cml_engine.cooked.graph_text import write_graph
from cml_engine.cooked.guess import DeviceGuess, write_guess
from cml_engine.cooked.kernels import Codes, compiled, digest_of, write_kernels
from cml_engine.cooked.plan_section import write_plan
from cml_engine.cooked.profiles import PROFILES, Profile
from cml_engine.cooked.schema import META, PLAN, RULES
from cml_engine.cooked.writer import Sections
from cml_engine.errors import InputError, UnsupportedOp
from cml_engine.errors.arguments import (
    check_choices,
    check_flag,
    check_instance,
    check_instances,
    check_path,
)
from cml_engine.gpu.shaders.dump import dump_kernel
from cml_engine.gpu.shaders.hlsl import step_key, step_keys
from cml_engine.io.json_files import Json
from cml_engine.ir.graph import Graph
from cml_engine.ir.graph_digest import graph_digest
from cml_engine.ops.declaration.choice import NO_VARIANTS
from cml_engine.ops.declaration.registry import load_families, lookup
from cml_engine.runtime.session.compile_graph import (
    CompileOptions,
    check_storage,
    make_plan,
    optimize_for,
    why_direct,
)


def cook(
    graph: Graph,
    devices: Iterable[str] = tuple(PROFILES),
    options: CompileOptions = CompileOptions(),
    *,
    player: bool = False,
    browser: bool = False,
    golden: bool = True,
    guesses: Sequence[DeviceGuess] = (),
    dump_kernels: str | Path | None = None,
) -> bytes:
    """Returns the network as the bytes of a cooked file (docs/cooked.md).

    Parameters
    ----------
    graph : from :func:`cml_engine.load`.
    devices : names of :data:`PROFILES`.
    options : of all plans, as of a session's; but without ``keep`` and ``plan``. With
        ``arithmetic="half"`` a plan that multiplies in 16 bits precedes the plan of each type of
        hardware, for devices with the feature ``shader-f16``: ``discrete-f16``, ``portable-f16``.
    player : leave out the graph, which only Python can use.
    browser : leave out SPIR-V too, which browsers do not take: most of a kernel's bytes.
    golden : add an input and NumPy's outputs of it (if every operator has a NumPy function).
    guesses : the assumed speed of devices, for players.
    dump_kernels : a folder for every kernel as HLSL, Metal, GLSL, SPIR-V and WGSL, for engines that
        compile them with their own tools. The file's name ends with the start of the kernel's
        digest, which players give to the backend (``cml_kernel.digest``).

    Examples
    --------
    >>> data = cook(graph, ["discrete", "portable"])  # the bytes of net.cml
    """
    _check_graph(graph, options)
    for value, option in ((player, "player"), (browser, "browser"), (golden, "golden")):
        check_flag(value, option)
    check_instances(DeviceGuess, guesses, "guesses")
    if dump_kernels is not None:
        check_path(dump_kernels, "dump_kernels")
    names = check_choices(
        tuple(PROFILES), list(devices) if isinstance(devices, Iterator) else devices, "devices"
    )
    if not names:
        raise InputError(f"devices: wanted some of {', '.join(PROFILES)}, got none")
    load_families()
    optimized = optimize_for(graph := with_seed(graph, options.seed), options)
    planned = [
        pair
        for profile in PROFILES.values()
        if profile.name in names
        for pair in _plans(profile, optimized, options, graph)
    ]
    profiles, plans = [profile for profile, _ in planned], [plan for _, plan in planned]
    if live := [name for plan in plans for name in plan.live_sliders]:
        raise InputError(
            f"'{graph.name}' has the slider '{live[0]}', a parameter of a kernel, and "
            "those are fixed in a cooked file: cook the model loaded without it"
        )
    if parts := plans[0].cpu_parts:
        node = parts[0].graph.nodes[0]
        raise UnsupportedOp(
            f"{node.title}: has no GPU kernel, and players of cooked files have no NumPy. Give it "
            "a kernel, or cook the network up to it (cml.edit) and compute it in the game",
            node.source,
        )
    sections = Sections()
    kernels = _write_plans(plans, profiles, gas_of(graph), browser, dump_kernels, sections)
    write_kernels(kernels, sections)
    if not player:
        write_graph(optimized, sections)
    if guesses:
        write_guess(guesses, sections)
    identical = bool(graph.integer) and not graph.float_tail
    storages = {options.storage, *(choices.get("storage") for choices in options.decide.values())}
    storage: Storage = "half" if "half" in storages else "float"
    pair = make_golden(optimized, graph, storage, identical) if golden else None
    if pair is not None:
        write_golden(pair, optimized.facts, sections)
    meta = _meta(optimized, profiles, options.storage, plans, kernels)
    if why := why_direct(graph, options):
        meta["direct"] = why
    if identical:
        meta["integer"] = model_digest(graph).hex()
    sections.add(META, json.dumps(meta, sort_keys=True, separators=(",", ":")).encode())
    return sections.bytes()


def _check_graph(graph: Graph, options: CompileOptions) -> None:
    """Raises :class:`InputError` if a graph cannot be cooked, or not with these options."""
    check_instance(Graph, graph, "the graph to cook (cml.load gives one)")
    check_instance(CompileOptions, options, "options")
    if options.keep or options.plan != PlanOptions():
        raise InputError(
            "options: keep and plan are for sessions, not for cooked files: leave them out"
        )
    if graph.cooked_form is not None:
        raise InputError(f"'{graph.name}' is cooked already: cook the model that it was made of")
    check_storage(graph, options)


def _plans(
    profile: Profile, optimized: Graph, options: CompileOptions, written: Graph
) -> Iterator[tuple[Profile, Plan]]:
    """Yields a type of device with its plan, in the order in which a player tries them.

    The plan for devices with ``shader-f16`` is left out if it has the same kernels as the one
    without.
    """

    def plan_for(profile: Profile) -> Plan:
        return make_plan(optimized, profile, _options(profile, options), written=written)

    plan = plan_for(profile)
    if options.arithmetic == "half" and not profile.limits.software:
        in_halves = plan_for(profile.with_f16)
        if step_keys(in_halves) != step_keys(plan):
            yield profile.with_f16, in_halves
    yield profile, plan


def _options(profile: Profile, options: CompileOptions) -> CompileOptions:
    """Returns the options of a profile's plan, with the shipped kernel choices of its device.

    Inputs are not packed, because players upload them as real numbers.
    """
    variants = shipped_table(profile.tuned_as) if options.tuned else NO_VARIANTS
    plan = PlanOptions(variants=variants, packed_inputs=False)
    return replace(options, plan=plan, tuned=False, cpu="refuse")


def _write_plans(
    plans: Sequence[Plan],
    profiles: Sequence[Profile],
    gas: int,
    browser: bool,
    dump_kernels: str | Path | None,
    sections: Sections,
) -> list[Codes]:
    """Adds the plans to ``sections``, and compiles their kernels on all cores.

    Returns each distinct kernel once, in the order of the file.
    """
    contents: dict[tuple[str, str], str] = {}
    keys = [[step_key(step, contents) for step in plan.steps] for plan in plans]
    digests = {key: digest_of(key) for key in set(chain.from_iterable(keys))}
    variants = {digests[key]: key for key in chain.from_iterable(keys)}
    with ThreadPoolExecutor(os.cpu_count() or 1, "cml-cook") as threads:
        kernels = list(threads.map(partial(compiled, browser=browser), variants.values()))
    if dump_kernels is not None:
        for key in variants.values():
            dump_kernel(key, dump_kernels)
    numbers = {digest: number for number, digest in enumerate(variants)}
    for plan, profile, plan_keys in zip(plans, profiles, keys, strict=True):
        used = [numbers[digests[key]] for key in plan_keys]
        section = write_plan(plan, profile, [(n, kernels[n]) for n in used], gas, sections)
        sections.add(PLAN, section)
    return kernels


def _meta(
    graph: Graph,
    profiles: Sequence[Profile],
    storage: Storage,
    plans: Sequence[Plan],
    kernels: Iterable[Codes],
) -> dict[str, Json]:
    ops = graph.ops
    return {
        "name": graph.name,
        "engine": _engine_version(),
        "rules": RULES,
        "model": graph_digest(graph),
        "profiles": [profile.name for profile in profiles],
        "half": storage == "half",
        "custom": sorted(op for op in ops if lookup(op).is_custom),
        "without_wgsl": [kernel.label for kernel in kernels if not kernel.wgsl],
        "tuned": {
            profile.name: {c.node: c.chosen for c in plan.choices if c.tuned}
            for profile, plan in zip(profiles, plans, strict=True)
        },
    }


def _engine_version() -> str:
    try:
        return metadata.version("cml-engine")
    except metadata.PackageNotFoundError:
        return "not installed"
