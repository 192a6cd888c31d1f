"""A model folder out of a GGUF file: its values as plain float32, its tokenizer and its chat template.

    python gguf_folder.py FILE.gguf FOLDER

It needs transformers, torch and gguf.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

file, folder = map(Path, sys.argv[1:])
of_file = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
read = AutoModelForCausalLM.from_pretrained(**of_file, dtype=torch.float32)
read.config.__dict__.pop("quantization_config", None)  # By now its values are plain numbers.
model = type(read)(read.config)
model.load_state_dict(read.state_dict())
model.save_pretrained(folder)
AutoTokenizer.from_pretrained(**of_file).save_pretrained(folder)
