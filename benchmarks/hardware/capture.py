"""SPIR-V as naga writes it for Vulkan: caught by a Vulkan layer while wgpu builds pipelines.

wgpu returns no compiled code, and it cannot run on null hardware because it submits at once. So
pipelines are built on any Vulkan device, and a layer (capture.c, built by the C compiler) writes
their modules to files.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

import cml_engine as cml
from benchmarks import command
from cml_engine.gpu.native import create_shader_module
from cml_engine.gpu.shaders.hlsl import ShaderKey

_SOURCE = Path(__file__).with_name("capture.c")
_NAME = "VK_LAYER_CML_capture"


class Capture:
    """Catches what this process gives to Vulkan. Make it before any device of the process."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="cml-capture-")
        self.path = Path(self._folder.name)
        _build(self.path)
        os.environ |= {
            "CML_CAPTURE": str(self.path),
            "VK_LAYER_PATH": str(self.path),
            "VK_INSTANCE_LAYERS": _NAME,
        }


class NagaCapture:
    """A GPU whose shader modules are caught."""

    def __init__(self) -> None:
        self._capture = Capture()
        self._path = self._capture.path
        self._gpu = command.open_gpu()

    def spirv(self, key: ShaderKey) -> bytes:
        """Returns naga's SPIR-V of a kernel variant, from the code that sessions use.

        Raises :class:`cml.CmlError` if the device caught nothing.
        """
        before = set(self._path.glob("*.spv"))
        device = self._gpu.device
        module = create_shader_module(device, key.label, key.code(), key.trusted)
        device.create_compute_pipeline(
            layout="auto", compute={"module": module, "entry_point": "main"}
        )
        caught = sorted(set(self._path.glob("*.spv")) - before)
        if not caught:
            raise cml.DeviceError(
                f"the layer caught no module of '{key.label}': it needs a Vulkan device, got "
                f"{self._gpu.name}"
            )
        code = caught[-1].read_bytes()
        for file in caught:
            file.unlink()
        return code


def _build(folder: Path) -> None:
    library = folder / "libcapture.so"
    compiler = os.environ.get("CC", "cc")
    arguments = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(_SOURCE)]
    try:
        subprocess.run(arguments, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", "") or str(error)
        raise cml.DeviceError(
            f"the layer that catches naga's code does not build: {reason.strip()}\n"
            "It needs a C compiler and Vulkan's headers (on Debian: gcc, libvulkan-dev)"
        ) from None
    layer = {
        "name": _NAME,
        "type": "GLOBAL",
        "library_path": str(library),
        "api_version": "1.3.0",
        "implementation_version": "1",
        "description": "writes shader modules to files",
    }
    manifest = {"file_format_version": "1.1.2", "layer": layer}
    (folder / "capture.json").write_text(json.dumps(manifest), encoding="utf-8")
