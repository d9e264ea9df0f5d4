"""The kernels: one HLSL file per operator family, named as its file in ``cml_engine/ops/``."""

from pathlib import Path

#: the folder that holds them
FOLDER = Path(__file__).parent
