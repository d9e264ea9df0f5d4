"""What quantizing did to a network, node by node."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A rounding point. Errors are against the network of floats, on the samples: ``largest`` and
    ``rms`` of the tensor's numbers; ``alone`` at the outputs, as a share of their size, where this
    one has 8 bits and all others 16. ``clipped`` is the share of numbers that its words cut off;
    ``carrier`` and ``bound`` are what is proven of its sums."""

    name: str
    title: str
    bits: int
    signed: bool
    scale: float
    largest: float
    rms: float
    alone: float
    clipped: float
    carrier: str
    bound: int


@dataclass(frozen=True, slots=True)
class QuantizeReport:
    """``error`` is the root mean square of the outputs' difference over that of the outputs, the
    worst of them."""

    model: str
    samples: int
    error: float
    wanted: float
    nodes: tuple[NodeReport, ...]
    #: outputs that are computed in floats
    not_identical: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the error is what was asked for."""
        return self.error <= self.wanted

    @property
    def data(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {**asdict(self), "ok": self.ok}

    def __str__(self) -> str:
        rows = [f"{self.model}: {len(self.nodes)} rounding points, {self.samples} samples"]
        rows.append(
            f"{'':32s} {'bits':>5s} {'largest':>10s} {'rms':>10s} {'alone':>9s} {'clipped':>8s} "
            f"{'carrier':8s} {'bound':>13s}"
        )
        for n in self.nodes:
            bits = f"{'' if n.signed else 'u'}{n.bits}"
            rows.append(
                f"{n.title[:32]:32s} {bits:>5s} {n.largest:10.3g} {n.rms:10.3g} "
                f"{100 * n.alone:8.3f}% {100 * n.clipped:7.3f}% {n.carrier:8s} {n.bound:13,d}"
            )
        rows += [
            f"output '{name}' is computed in floats: not identical on all machines"
            for name in self.not_identical
        ]
        kept = "within" if self.ok else "MORE THAN"
        rows.append(
            f"error of the outputs: {100 * self.error:.3g} % of their size, {kept} "
            f"{100 * self.wanted:.3g} %"
        )
        return "\n".join(rows)
