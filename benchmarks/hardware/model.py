"""A model of the time of a dispatch on a card, from its machine code (docs/design/performance.md).

The time is the largest of four bounds: vector arithmetic, issue of other instructions, memory, and
latency of the waves that are resident. Clocks are the card's boost clocks; caches are assumed to
serve every load after a tensor's first.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from benchmarks.hardware.listing import (
    FMA,
    JUMP,
    MEMORY,
    SCALAR,
    SCALAR_LOAD,
    SHARED,
    WAIT,
    Latencies,
    Listing,
    Nest,
)


@dataclass(frozen=True, slots=True)
class Card:
    """A card: data of its vendor, and assumed latencies in cycles.

    ``units`` are compute units (multiprocessors) of ``simds`` SIMDs with ``lanes`` lanes.
    ``load_bytes`` and ``shared_bytes`` are what a unit's cache and groupshared memory serve in a
    cycle. ``memory`` are bytes per second, and ``cache`` those of its last cache, of
    ``cache_size`` bytes.
    """

    name: str
    family: str
    units: int
    simds: int
    lanes: int
    clock: float
    memory: float
    cache: float
    cache_size: int
    load_bytes: int
    shared_bytes: int
    latencies: tuple[int, int, int]

    @property
    def flops(self) -> float:
        """The peak of float32 per second; a multiply-add counts as two."""
        return 2.0 * self.units * self.simds * self.lanes * self.clock

    @property
    def scalar_loads(self) -> bool:
        """As :attr:`Limits.scalar_loads`: False for NVIDIA's cards."""
        return not self.family.startswith("sm_")

    def memory_seconds(self, nbytes: float) -> float:
        """Returns the seconds of moving these bytes; the cache serves what fits half of it."""
        return nbytes / (self.cache if nbytes <= self.cache_size / 2 else self.memory)

    def load_cycles(self, wave: int) -> float:
        """Returns the cycles of a SIMD for loads of a byte by each of a wave's lanes."""
        return wave * self.simds / self.load_bytes

    def latency(self, wave: int) -> Latencies:
        scalar, memory, shared = self.latencies
        cycles = {SCALAR_LOAD: scalar, MEMORY: memory, SHARED: shared}
        return Latencies(max(wave // self.lanes, 1), cycles)


#: the cards of the model by name; each family's compiler is at hand
CARDS = {
    card.name: card
    for card in (
        Card(
            "RX 6800",
            "NAVI21",
            60,
            2,
            32,
            2.105e9,
            512e9,
            1660e9,
            128 << 20,
            128,
            128,
            (60, 250, 40),
        ),
        Card(
            "RX Vega 64",
            "VEGA10",
            64,
            4,
            16,
            1.546e9,
            484e9,
            1000e9,
            4 << 20,
            64,
            128,
            (60, 350, 60),
        ),
        Card(
            "RTX 2080 Ti",
            "sm_75",
            68,
            4,
            16,
            1.545e9,
            616e9,
            1800e9,
            5632 << 10,
            64,
            128,
            (30, 200, 25),
        ),
        Card(
            "RTX 4060",
            "sm_89",
            24,
            4,
            32,
            2.46e9,
            272e9,
            1000e9,
            24 << 20,
            128,
            128,
            (30, 200, 25),
        ),
        Card(
            "RTX 4090",
            "sm_89",
            128,
            4,
            32,
            2.52e9,
            1008e9,
            5000e9,
            72 << 20,
            128,
            128,
            (30, 200, 25),
        ),
        Card(
            "H100 SXM",
            "sm_90",
            132,
            4,
            32,
            1.98e9,
            3350e9,
            5500e9,
            50 << 20,
            128,
            128,
            (30, 200, 25),
        ),
    )  # fmt: skip
}
#: seconds from one dispatch to the next that waits for it
LAUNCH = 3e-6


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel as a compiler made it: registers of a lane, spilled registers, waves that fit a
    SIMD, bytes of code and of groupshared memory, and its listing."""

    registers: int
    spills: int
    waves: int
    code_bytes: int
    shared_bytes: int
    wave: int
    listing: Listing


@dataclass(frozen=True, slots=True)
class Work:
    """A dispatch: workgroups of ``threads`` threads, useful multiply-adds, bytes that it must move,
    and the turns of its loops (``known`` is False if these are guessed)."""

    groups: int
    threads: int
    products: float
    nbytes: float
    nest: Nest
    known: bool = True


@dataclass(frozen=True, slots=True)
class Estimate:
    """The modelled seconds of a dispatch by bound, and the executed instructions of its lanes."""

    bounds: dict[str, float]
    #: seconds that the roofline allows
    roof: float
    #: executed instructions by class, and moved bytes by class, of all lanes
    executed: Counter[str]
    moved: Counter[str]

    @property
    def seconds(self) -> float:
        return max(self.bounds.values()) + LAUNCH

    @property
    def limit(self) -> str:
        return max(self.bounds, key=lambda name: self.bounds[name])


def estimate(card: Card, kernel: Kernel, work: Work) -> Estimate:
    """Returns the modelled time of a dispatch."""
    listing, nest = kernel.listing, work.nest
    waves = work.groups * -(-work.threads // kernel.wave)
    counts, moved = listing.counts(nest), listing.moved(nest)
    simds = card.units * card.simds
    # whole waves on the busiest SIMD
    deep = -(-waves // simds)
    vector = listing.vector_cycles(nest, max(kernel.wave // card.lanes, 1))
    scalar = sum(counts[kind] for kind in (SCALAR, SCALAR_LOAD, JUMP, WAIT))
    lanes = kernel.wave
    per_unit = -(-waves // card.units)
    loads = per_unit * lanes * moved[MEMORY] / card.load_bytes
    shared = per_unit * lanes * moved[SHARED] / card.shared_bytes
    alone = listing.cycles_alone(nest, card.latency(kernel.wave))
    resident = max(min(kernel.waves, deep), 1)
    bounds = {
        "vector": deep * vector / card.clock,
        "issue": deep * scalar / card.clock,
        "loads": loads / card.clock,
        "shared": shared / card.clock,
        "latency": -(-deep // resident) * alone / card.clock,
        "memory": card.memory_seconds(work.nbytes),
    }
    roof = max(2 * work.products / card.flops, card.memory_seconds(work.nbytes))
    every = waves * lanes
    return Estimate(
        bounds,
        roof,
        Counter({kind: every * n for kind, n in counts.items()}),
        Counter({kind: every * n for kind, n in moved.items()}),
    )


def products_share(kernel: Kernel) -> float:
    """Returns the share of multiply-adds among the instructions of the hot loop."""
    loop = kernel.listing.inner_loop()
    return loop[FMA] / max(sum(loop.values()), 1)
