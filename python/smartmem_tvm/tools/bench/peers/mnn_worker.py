# SPDX-License-Identifier: Apache-2.0
"""MNN in its own Python environment: convert an ONNX file and run it on requests through a pipe.

The script is started by path with that environment's Python (see `mnn`), so it does not import this package. Messages
are pickled; the answer to each is a pair: success or not, and the content or a sentence.
"""

import os
import pickle
import sys
from pathlib import Path


class Worker:
    """A converted model and its session.

    Parameters
    ----------
    source, converted : str
        The ONNX file, and the path for MNN's file.
    threads : int
        Threads of the CPU backend.
    """

    def __init__(self, source: str, converted: str, threads: int):
        # The function behind the command `mnnconvert`; the command itself also installs a package with the first pip on
        # the path and sends a report of the conversion.
        import _tools

        _tools.mnnconvert(
            ["mnnconvert", "-f", "ONNX", "--modelFile", source, "--MNNModel", converted, "--bizCode", "b"]
        )
        import MNN

        self.mnn = MNN
        self.interpreter = MNN.Interpreter(converted)
        # "high" is float32.
        settings = {"backend": "CPU", "numThread": threads, "precision": "high"}
        self.session = self.interpreter.createSession(settings)

    def feed(self, inputs: dict) -> dict:
        """Run on the arrays and return the outputs by name."""
        import numpy as np

        kinds = {"f": self.mnn.Halide_Type_Float, "i": self.mnn.Halide_Type_Int}
        for name, array in inputs.items():
            array = array.astype({"f": "float32", "i": "int32"}[array.dtype.kind])
            kind = kinds[array.dtype.kind]
            host = self.mnn.Tensor(array.shape, kind, array, self.mnn.Tensor_DimensionType_Caffe)
            self.interpreter.getSessionInput(self.session, name).copyFrom(host)
        self.run()
        outputs = {}
        for name, tensor in self.interpreter.getSessionOutputAll(self.session).items():
            shape = tensor.getShape()
            empty = np.zeros(shape, "float32")
            host = self.mnn.Tensor(shape, self.mnn.Halide_Type_Float, empty, self.mnn.Tensor_DimensionType_Caffe)
            tensor.copyToHostTensor(host)
            outputs[name] = np.array(host.getData(), "float32").reshape(shape)
        return outputs

    def run(self) -> None:
        """Run once."""
        self.interpreter.runSession(self.session)

    def finish(self) -> float:
        """Return the largest resident set of this process in MB (10^6 bytes)."""
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6


def main() -> None:
    """Prepare, then answer one message after the other until the pipe closes."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the output of MNN must not mix with the answers

    def answer(ok: bool, content: object) -> None:
        pickle.dump((ok, content), answers)
        answers.flush()

    try:
        source, converted, threads = sys.argv[1:]
        worker = Worker(source, converted, int(threads))
        answer(True, worker.mnn.version())
        while True:
            name, arguments = pickle.load(sys.stdin.buffer)
            answer(True, getattr(worker, name)(*arguments))
    except EOFError:
        return
    except Exception as error:
        answer(False, f"mnn failed with {type(error).__name__} ({error}).")


if __name__ == "__main__":
    main()
