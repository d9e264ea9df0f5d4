"""The report of a quantization, node by node."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from cml_engine.io.json_files import Json


@dataclass(frozen=True, slots=True)
class NodeReport:
    """The error of one rounding point against the float network, on the samples.

    ``largest`` and ``rms`` are errors of the tensor's values. ``alone`` is the relative error of
    the outputs if this point has 8 bits and all others have 16. ``clipped`` is the share of
    values that its words cannot represent. ``carrier`` is the type that holds its sums, and
    ``bound`` the proven bound of the sums.
    """

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
    """The result of a quantization, with the error of every rounding point.

    ``error`` is the largest relative error of any output: the RMS of the difference over the RMS
    of the output. ``wanted`` is the requested error.
    """

    model: str
    samples: int
    error: float
    wanted: float
    nodes: tuple[NodeReport, ...]
    #: the outputs that are computed in floats
    not_identical: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if the error is not above the requested one."""
        return self.error <= self.wanted

    @property
    def data(self) -> dict[str, Json]:
        """The whole report as a JSON object."""
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
