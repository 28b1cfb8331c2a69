"""The embedded language model's weights as a folder that vLLM reads, made once from the GGUF file.

Needs gguf, transformers and torch, which come with the environment of `make test-backends`.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from duologue.detect.weights import models_folder
from duologue.models.cascade.language_model import MODEL_FILE

FOLDER = "smollm2-135m-vllm"
_WHOLE = "model.safetensors"


def vllm_folder(models_dir: str | None = None) -> Path:
    """The folder beside the model files; made if it is not there (about 20 s, 270 MB). FileNotFoundError without GGUF."""
    models = models_folder(models_dir)
    folder = models / FOLDER
    if not (folder / _WHOLE).is_file():
        if not (models / MODEL_FILE).is_file():
            raise FileNotFoundError(f"{models / MODEL_FILE} is not there: run `make setup` first")
        _convert(models, folder)
    return folder


def _convert(models: Path, folder: Path) -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    transformers: Any = importlib.import_module("transformers")
    torch: Any = importlib.import_module("torch")
    making = folder.with_name(folder.name + ".new")
    making.mkdir(parents=True, exist_ok=True)
    weights = transformers.AutoModelForCausalLM.from_pretrained(
        models,
        gguf_file=MODEL_FILE,
        dtype=torch.bfloat16,
        quantization_config=transformers.GgufConfig(dequantize=True),
    )
    config: Any = weights.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    weights.save_pretrained(making)
    transformers.AutoTokenizer.from_pretrained(models, gguf_file=MODEL_FILE).save_pretrained(making)
    saved = json.loads((making / "config.json").read_text())
    saved.pop("quantization_config", None)
    (making / "config.json").write_text(json.dumps(saved, indent=2))
    making.rename(folder)  # what was interrupted leaves no folder that looks whole


if __name__ == "__main__":
    sys.stdout.write(f"{vllm_folder(sys.argv[1] if len(sys.argv) > 1 else None)}\n")
