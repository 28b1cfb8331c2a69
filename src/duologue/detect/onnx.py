"""The only file that knows onnxruntime.

Rules kept here: the library is imported when the first graph is loaded, not before; every graph runs on the CPU with
one inter-op thread and a stated number of intra-op threads (one unless the caller insists: two threads on a busy
core are slower than one); a graph never spins while it waits.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duologue.detect.weights import ModelUnavailableError, require_weights

Tensor = NDArray[Any]
_ERRORS_ONLY = 3


class OnnxGraph:
    """A loaded graph. Calls are reentrant; each takes the time of one inference on the calling thread."""

    def __init__(self, path: Path, *, threads: int = 1) -> None:
        """Load `path`. Raises ModelUnavailableError when the file or onnxruntime is missing."""
        require_weights(path)
        try:
            # By name, because the library ships no types and must not be loaded by whoever merely imports us.
            runtime = importlib.import_module("onnxruntime")
        except ImportError as error:
            raise ModelUnavailableError(
                f"cannot run {path.name} without onnxruntime ({error}): pip install onnxruntime"
            ) from error
        options = runtime.SessionOptions()
        options.inter_op_num_threads = 1
        options.intra_op_num_threads = threads
        options.log_severity_level = _ERRORS_ONLY
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.inputs: tuple[str, ...] = tuple(entry.name for entry in self._session.get_inputs())
        self.outputs: tuple[str, ...] = tuple(entry.name for entry in self._session.get_outputs())

    def run(self, feeds: Mapping[str, Tensor], outputs: Sequence[str] | None = None) -> list[Tensor]:
        """Run once. `outputs` names what to return, in that order (all outputs when None)."""
        results: list[Tensor] = self._session.run(None if outputs is None else list(outputs), dict(feeds))
        return [np.asarray(result) for result in results]
