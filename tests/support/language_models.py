"""Small causal language models of Hugging Face, one of each layout, and FIRE on them by loops over heads."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

VOCABULARY, WIDTH, HEADS, BLOCKS = 64, 32, 4, 2
_TOKENS = {"vocab_size": VOCABULARY, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
_OLD = {**_TOKENS, "n_embd": WIDTH, "n_layer": BLOCKS, "n_head": HEADS, "n_positions": 32}
_NEW = {
    **_TOKENS,
    "hidden_size": WIDTH,
    "num_hidden_layers": BLOCKS,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
    "max_position_embeddings": 32,
}
_GROUPED = {**_NEW, "num_key_value_heads": 2}
_UNTIED = {**_GROUPED, "tie_word_embeddings": False}
_FALCON = {key: value for key, value in _NEW.items() if key not in ("intermediate_size", "max_position_embeddings")}
_HEAD = WIDTH // HEADS

Rows = dict[str, list[int]]


def thirds() -> Rows:
    """All queries, all keys, all values."""
    return {role: list(range(i * WIDTH, (i + 1) * WIDTH)) for i, role in enumerate("qkv")}


def halves(width: int) -> Rows:
    """The gate projection, then the up projection."""
    return {"gate": list(range(width)), "up": list(range(width, 2 * width))}


def grouped(groups: int) -> Rows:
    """All queries, then the keys of a few heads, then their values."""
    width = groups * _HEAD
    starts = {"q": (0, WIDTH), "k": (WIDTH, WIDTH + width), "v": (WIDTH + width, WIDTH + 2 * width)}
    return {role: list(range(*ends)) for role, ends in starts.items()}


def by_head(groups: int) -> Rows:
    """For each head of keys: its queries, the key, the value."""
    rows: Rows = {"q": [], "k": [], "v": []}
    at = 0
    for _ in range(groups):
        for role, heads in (("q", HEADS // groups), ("k", 1), ("v", 1)):
            rows[role] += range(at, at + heads * _HEAD)
            at += heads * _HEAD
    return rows


@dataclass(frozen=True)
class Family:
    """A causal language model: its type and settings, what is fused, and how many matrices are taken of all."""

    kind: str
    config: dict[str, Any]
    matrices: int
    tied: bool
    fused: dict[str, Rows] = field(default_factory=dict)

    def build(self) -> nn.Module:
        """Return the model with random weights, seeded."""
        transformers = pytest.importorskip("transformers")
        if self.kind not in transformers.CONFIG_MAPPING:
            pytest.skip(f"this release of transformers has no {self.kind}")
        torch.manual_seed(0)
        config = transformers.AutoConfig.for_model(self.kind, **self.config)
        return transformers.AutoModelForCausalLM.from_config(config).float().eval()


OPT = {**_NEW, "ffn_dim": 48, "word_embed_proj_dim": WIDTH, "pad_token_id": 1}
MPT = {"vocab_size": VOCABULARY, "d_model": WIDTH, "n_layers": BLOCKS, "n_heads": HEADS, "max_seq_len": 32}
GEMMA = {**_GROUPED, "head_dim": _HEAD}
FAMILIES = {
    "GPT-2": Family("gpt2", _OLD, 13, True, {"c_attn": thirds()}),
    "GPT-J": Family("gptj", {**_OLD, "rotary_dim": 4}, 13, False),
    "GPT-NeoX (Pythia)": Family("gpt_neox", _NEW, 13, False, {"query_key_value": by_head(HEADS)}),
    "GPT-NeoX, tied": Family(
        "gpt_neox", {**_NEW, "tie_word_embeddings": True}, 13, True, {"query_key_value": by_head(HEADS)}
    ),
    "BLOOM": Family(
        "bloom", {**_TOKENS, "hidden_size": WIDTH, "n_layer": BLOCKS, "n_head": HEADS}, 13, True,
        {"query_key_value": by_head(HEADS)},
    ),
    "Falcon, one key": Family("falcon", _FALCON, 13, True, {"query_key_value": by_head(1)}),
    "Falcon, as many keys": Family(
        "falcon", {**_FALCON, "multi_query": False}, 13, True, {"query_key_value": by_head(HEADS)}
    ),
    "Falcon, grouped keys": Family(
        "falcon", {**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}, 13, True,
        {"query_key_value": by_head(2)},
    ),
    "Llama": Family("llama", _UNTIED, 15, False),
    "Llama, tied": Family("llama", {**_GROUPED, "tie_word_embeddings": True}, 15, True),
    "Mistral": Family("mistral", _UNTIED, 15, False),
    "Qwen 2": Family("qwen2", _UNTIED, 15, False),
    "Qwen 3": Family("qwen3", {**_UNTIED, "head_dim": _HEAD}, 15, False),
    "Gemma": Family("gemma", GEMMA, 15, True),
    "Gemma 2": Family("gemma2", GEMMA, 15, True),
    "Gemma 3": Family("gemma3_text", GEMMA, 15, True),
    "Phi": Family("phi", _NEW, 13, False),
    "Phi-3": Family("phi3", _UNTIED, 15, False, {"qkv_proj": grouped(2), "gate_up_proj": halves(48)}),
    "OPT": Family("opt", OPT, 13, True),
    "MPT": Family("mpt", MPT, 13, True, {"Wqkv": thirds()}),
    "OLMo 2": Family("olmo2", _UNTIED, 15, False),
    "StarCoder": Family("gpt_bigcode", _OLD, 13, True, {"c_attn": grouped(1)}),
    "StarCoder 2": Family("starcoder2", {**_GROUPED, "tie_word_embeddings": True}, 13, True),
    "Persimmon": Family("persimmon", _NEW, 13, False, {"query_key_value": by_head(HEADS)}),
}  # fmt: skip


def slow_fire(family: Family, model: nn.Module) -> int:
    """Apply FIRE to every Linear layer, part by part and row by row; return how many matrices that were."""
    done: list[nn.Parameter] = []
    matrices = 0
    for name, layer in model.named_modules():
        stored_in_out = type(layer).__name__ == "Conv1D"
        if not (isinstance(layer, nn.Linear) or stored_in_out) or any(layer.weight is weight for weight in done):
            continue
        done.append(layer.weight)
        weight = layer.weight.detach().T if stored_in_out else layer.weight.detach()
        for rows in family.fused.get(name.rpartition(".")[2], {"": list(range(len(weight)))}).values():
            part = torch.stack([weight[row] for row in rows]).double()
            left, _, right = torch.linalg.svd(part, full_matrices=False)
            new = (len(rows) / part.shape[1]) ** 0.5 * left @ right
            for row, values in zip(rows, new, strict=True):
                weight[row] = values.float()
            matrices += 1
    return matrices


def for_each_family(test: Callable) -> Callable:
    """Decorate a test to run with each family."""
    return pytest.mark.parametrize("name", FAMILIES)(test)
