"""Networks in whole numbers, whose results are bit-identical on every machine."""

from cml_engine.compiler.integer.digest import RULE_VERSION, model_digest, run_digest
from cml_engine.compiler.integer.quantizer.quantize import quantize
from cml_engine.compiler.integer.quantizer.weights import quantize_weights
from cml_engine.runtime.session.inputs import Words

__all__ = [
    "RULE_VERSION",
    "Words",
    "model_digest",
    "quantize",
    "quantize_weights",
    "run_digest",
]
