"""The kernels: one HLSL file per operator family, with the stem of ``cml_engine/ops/<family>.py``."""

from pathlib import Path

#: the folder that holds them
FOLDER = Path(__file__).parent
