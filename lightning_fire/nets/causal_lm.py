"""Causal language models of Hugging Face's transformers, for recipes."""

from pathlib import Path
from typing import Any

from torch import nn


def causal_lm(
    model_type: str | None = None, config: dict[str, Any] | None = None, folder: str | None = None
) -> nn.Module:
    """Make a causal language model: an untrained one from its settings, or a trained one from a folder.

    Args:
        model_type: Family of the model, such as `gpt2` or `llama`.
        config: Its settings, by the names of the family's config.
        folder: Folder written by `save_pretrained`, instead of both. Nothing is downloaded.

    Returns:
        The model, float32, in training mode, without its cache of keys and values.

    Raises:
        ValueError: If not exactly one of `model_type` and `folder` is given, or the family lacks a setting.
        FileNotFoundError: If `folder` has no `config.json`.
        ImportError: If transformers is not installed.

    Example:
        >>> net = causal_lm("gpt2", {"vocab_size": 8, "n_positions": 4, "n_embd": 4, "n_layer": 1, "n_head": 1})
        >>> type(net).__name__
        'GPT2LMHeadModel'
    """
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError as error:
        raise ImportError("causal_lm needs transformers: pip install 'lightning-fire[huggingface]'") from error
    if (model_type is None) == (folder is None):
        raise ValueError(f"one of `model_type` and `folder` must be given, got {model_type!r} and {folder!r}")
    net: Any
    if folder is not None:
        if not (Path(folder) / "config.json").is_file():
            raise FileNotFoundError(f"`folder` must be one that save_pretrained() has written, got {folder!r}")
        net = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    elif model_type is not None:
        config = config or {}
        if unknown := sorted(set(config) - set(AutoConfig.for_model(model_type).to_dict())):
            raise ValueError(f"`config` of {model_type!r} has no {', '.join(unknown)}")
        net = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **config))
    net.config.use_cache = False
    return net.float().train()  # transformers 5 keeps the precision of the file
