"""The simulation that the population agent learns: trees, bushes and rocks after some generations.

Each species has a preferred place (warmth, wetness, slope). In every generation seeds fall around
the plants, seedlings take the light that others leave, and a part dies: trees shade bushes, both
keep off bare rock, and the grain makes single samples better or worse ground.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cml_engine.demo_game.arrays import Array
from cml_engine.demo_game.training.materials import Ground, blur, step


@dataclass(frozen=True, slots=True)
class Species:
    """The parameters of a species: rates per generation, and its seeds' spread in cells."""

    growth: float
    death: float
    seeding: float
    reach: float


TREES = Species(growth=0.55, death=0.10, seeding=0.02, reach=1.6)
BUSHES = Species(growth=0.8, death=0.22, seeding=0.06, reach=1.1)
#: part of the light that trees take from bushes below them
SHADE = 0.88
GENERATIONS = 30


def _suits(ground: Ground, luck: Array) -> tuple[Array, Array]:
    """Returns each sample's suitability for trees (0 to 1) and for bushes (0 to 1.1)."""
    wet = ground.wet + 0.25 * ground.hollow
    dry_land = step(ground.cells, 0.4, 1.6)
    trees = step(wet, 0.36, 0.62) * step(ground.warmth, 0.22, 0.42) * step(ground.slope, 0.85, 0.5)
    bushes = step(wet, 0.20, 0.42) * step(ground.warmth, 0.08, 0.3) * step(ground.slope, 1.0, 0.65)
    return trees * dry_land * (0.35 + 0.65 * luck), bushes * dry_land * (1.1 - 0.6 * luck)


def _generation(cover: Array, suits: Array, light: Array, species: Species) -> Array:
    """Returns the cover of one species (0 to 1 per sample) after one generation."""
    seeds = species.seeding + blur(cover, species.reach)
    grown = species.growth * suits * light * seeds / (seeds + 0.25)
    after: Array = np.clip(cover * (1 - species.death) + grown * (1 - cover), 0, 1)
    return after


def _rocks(ground: Ground, luck: Array, trees: Array) -> Array:
    """Returns the density of rocks: on steep ground, most below cliffs, some in the open."""
    steep = step(ground.slope, 0.45, 0.8) * step(ground.slope, 1.5, 1.0)
    below = step(blur(ground.slope, 2.0) - 0.5 * ground.slope, 0.15, 0.45)
    strewn = step(luck, 0.9, 0.99) * 0.35 + 0.75 * steep * (0.3 + 0.7 * below) * luck
    above = step(ground.cells, -1.0, 0.5)
    rocks: Array = strewn * above * (1 - 0.7 * trees)
    return rocks


def populate(heights: Array, moisture: Array, grain: Array, cell: Array) -> Array:
    """Returns densities (N, 3, h, w) of trees, bushes and rocks for heights (N, 1, h, w)."""
    ground = Ground(heights, moisture, cell)
    luck = np.sort(grain, axis=1)[:, 1:3].mean(axis=1, keepdims=True)
    fit_trees, fit_bushes = _suits(ground, luck)
    trees, bushes = np.full_like(heights, 0.05), np.full_like(heights, 0.05)
    for _ in range(GENERATIONS):
        shade = blur(trees, 0.8)
        trees = _generation(trees, fit_trees, 1 - 0.4 * bushes * (1 - trees), TREES)
        light = np.clip(1 - SHADE * shade, 0, 1)
        bushes = _generation(bushes, fit_bushes, light, BUSHES)
    rocks = _rocks(ground, luck, trees)
    densities: Array = np.clip(np.concatenate([trees, bushes, rocks], axis=1), 0, 1)
    return densities.astype(np.float32)
