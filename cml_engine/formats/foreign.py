"""Recognises model files of other frameworks and cooked files, and says how to convert them.

Each line is a command, mostly of the framework's own exporter, with the file's name filled in.
"""

from __future__ import annotations

from pathlib import Path

from cml_engine.errors import InputError

_TORCH = 'torch.onnx.export(model.eval(), (example_input,), "{stem}.onnx")'
_KERAS = 'keras.saving.load_model("{file}").export("{stem}.onnx", format="onnx")'
_TF = "python -m tf2onnx.convert {what} --output {stem}.onnx"
_CORE_ML = (
    "onnxmltools.utils.save_model("
    'onnxmltools.convert_coreml(coremltools.utils.load_spec("{file}")), "{stem}.onnx")'
)
#: by suffix: what the file is, and how the model in it becomes one that can be loaded
_FOREIGN = {
    **dict.fromkeys((".pt", ".pth", ".ckpt", ".pt2"), ("a PyTorch file", _TORCH)),
    ".py": ("a Python program", _TORCH),
    ".safetensors": (
        "a file of weights without a network",
        _TORCH + ', or, for a model of NNEF text, cml.load(MODEL, weights="{file}")',
    ),
    ".tflite": ("a TensorFlow Lite model", _TF.replace("{what}", "--tflite {file}")),
    ".pb": (
        "a TensorFlow graph",
        _TF.replace("{what}", "--graphdef {file} --inputs INPUT:0 --outputs OUTPUT:0"),
    ),
    **dict.fromkeys((".h5", ".hdf5", ".keras"), ("a Keras model", _KERAS)),
    ".mlmodel": ("a Core ML model", _CORE_ML),
    ".cml": ("a cooked file", 'cml.load_cooked("{file}")'),
    ".bin": ("a file of weights without a network", 'cml.load("{stem}.param"), if it is ncnn\'s'),
}
_PARAM_BIN = ".param.bin"
_SAVED_MODEL = "saved_model.pb"


def check_foreign(model: Path) -> None:
    """Raises :class:`InputError` with a command that converts the file if it is foreign.

    Returns normally for all other files. The suffix decides; for a folder, a file inside it.
    """
    if model.name.lower().endswith(_PARAM_BIN):
        raise InputError(
            f"cannot load '{model}': it is the binary form of an ncnn .param. Give the .param of "
            "text that ncnn2mem made it from, for this one has no names"
        )
    if model.is_dir() and (model / _SAVED_MODEL).is_file():
        advice = ("a TensorFlow SavedModel", _TF.replace("{what}", "--saved-model {file}"))
    elif model.is_dir() or model.suffix.lower() not in _FOREIGN:
        return
    else:
        advice = _FOREIGN[model.suffix.lower()]
    file_type, command = advice
    raise InputError(
        f"cannot load '{model}': it is {file_type}. This gets the model in (cml docs your_model):\n"
        f"    {command.format(file=model, stem=model.stem)}"
    )
