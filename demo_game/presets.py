"""Chooses the preset of a machine: the picture's quality and the world's level of detail."""

from __future__ import annotations

import argparse
from dataclasses import replace

import cml_engine as cml
from cml_engine.demo_game.fitting import MachineFit
from cml_engine.demo_game.game import LEAST_MS, Settings
from cml_engine.demo_game.render.quality import PRESETS, Quality
from cml_engine.demo_game.world.sun import LIGHTS

#: the world's default seed
SEED = 7


def choose(gpu: cml.Gpu, options: argparse.Namespace) -> tuple[Quality, Settings, str]:
    """Returns the quality, the game's settings, and a line that says what was chosen and why.

    The preset is the one in the options, or the device's for ``auto``.
    """
    automatic = options.quality == "auto"
    adapter_type = str(gpu.info.get("adapter_type"))
    preset = PRESETS[{"CPU": "software", "IntegratedGPU": "low"}.get(adapter_type, "high")]
    quality, settings = make_settings(options, preset if automatic else None)
    if automatic:
        fit = MachineFit(
            quality,
            settings.detail,
            settings.frame_ms,
            LEAST_MS,
            keeps_size=options.size is not None,
            # a baked or an integer world has the same tiles on every machine
            keeps_tiles=options.integer or options.planet is not None,
        )
        settings = replace(settings, fit=fit)
    detail = settings.detail
    why = f"chosen for {gpu.name}" if automatic else "as requested"
    notice = (
        f"quality '{quality.name}' ({why}): {quality.width}x{quality.height}, "
        f"levels {detail.finest} to {detail.coarsest}, {detail.view_m / 1e3:g} km of view"
    )
    return quality, settings, notice


def make_settings(
    options: argparse.Namespace, preset: Quality | None = None
) -> tuple[Quality, Settings]:
    """Returns the quality and the game's settings from the command line's options.

    ``preset`` replaces the quality in the options; without it ``auto`` means a software driver's.
    """
    name = "software" if options.quality == "auto" else options.quality
    quality = preset or PRESETS[name]
    if options.size:
        quality = replace(quality, width=options.size[0], height=options.size[1])
    settings = Settings(
        SEED if options.seed is None else options.seed,
        options.models,
        options.texture_upres,
        options.planet,
        integer=options.integer,
        detail=quality.detail,
        light=LIGHTS[options.light],
        watch=options.watch,
    )
    return quality, settings
