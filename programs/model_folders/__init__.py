"""Model folders: models as transformers keeps them on disk, a config.json, safetensors, and a tokenizer.

Decides which architectures are known, what their configurations mean, and which tensor of theirs is which of
`ops.transformer` (`llama`, without input or output); how a folder is read and written whole (`folders`), and how text
becomes tokens (`tokens`). No code of a folder's own is ever run.
"""
