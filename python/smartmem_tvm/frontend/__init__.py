# SPDX-License-Identifier: Apache-2.0
"""Front end: convert an ONNX file or a torch ExportedProgram to a Relax module with static shapes.

The steps are listed in `verbs`.
"""

from smartmem_tvm import _tvm  # noqa: F401  (a wrong TVM is named before anything of TVM is imported)
from smartmem_tvm._lazy import lazy

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "Model": "onnx_file",
        "bound": "verbs",
        "check_inputs": "spec",
        "from_gguf": "verbs",
        "from_onnx": "verbs",
        "from_onnx_as_tvm": "verbs",
        "from_torch": "torch_program",
        "input_spec": "spec",
        "load_onnx": "verbs",
        "onnxruntime_session": "reference",
        "output_names": "spec",
        "read_model": "verbs",
        "read_open": "verbs",
        "read_sizes": "verbs",
        "reference_name": "reference",
        "run_exactly": "reference",
        "run_onnxruntime": "reference",
        "run_reference": "reference",
        "unsupported_operators": "operators",
    },
)
