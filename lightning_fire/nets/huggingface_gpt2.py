"""Settings and weights of Hugging Face's GPT-2, read as those of `GPT`, and written from them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel

    from lightning_fire.nets.gpt import GPT

_GELU = {"gelu": "exact", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}  # names of activations in a config
# Settings that `GPT` does not have. `reorder_and_upcast_attn` may be either: it changes only the rounding.
_ONLY = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
    "layer_norm_epsilon": 1e-5,
}
_DROPOUTS = ("embd_pdrop", "attn_pdrop", "resid_pdrop")
_STORED_IN_OUT = ("c_attn.weight", "c_proj.weight", "c_fc.weight")  # Conv1D: (in, out)
_CAUSAL_MASKS = (".attn.bias", ".attn.masked_bias")  # buffers in files of old releases
_LAST_TOKEN_OF_GPT2 = 50256  # both the first and the last of a text


def read(
    source: nn.Module | Mapping[str, Tensor] | str | Path, heads: int | None, dropout: float | None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the arguments and the state of a `GPT`, which may share memory: see `GPT.from_huggingface`."""
    if isinstance(source, str | Path):
        source = _opened(Path(source))
    if isinstance(source, nn.Module):
        settings = _settings(source, heads, dropout)
        source = source.state_dict()
    elif isinstance(source, Mapping):
        if heads is None:
            raise ValueError("`heads` must be given with a state dict, which does not contain them (GPT-2: dim / 64)")
        settings = {"heads": heads, "dropout": 0.0 if dropout is None else dropout, "gelu": "tanh"}
    else:
        raise ValueError(f"`source` must be a model, a state dict or a path, got {type(source).__name__}")
    state = _state(source)
    vocab_size, dim = state["transformer.wte.weight"].shape
    sizes = {"vocab_size": vocab_size, "block_size": len(state["transformer.wpe.weight"]), "dim": dim}
    depth = len({name.split(".")[2] for name in state if name.startswith("transformer.h.")})
    return {**sizes, "depth": depth, "bias": True, **settings}, state


def write(net: "GPT") -> "GPT2LMHeadModel":
    """Return a GPT-2 with a copy of the weights of a `GPT`; the global random state stays as it was."""
    transformers = _transformers()
    # the tokens that begin and end a text are known for the vocabulary of GPT-2 alone
    ends = {} if net.vocab_size > _LAST_TOKEN_OF_GPT2 else {"bos_token_id": None, "eos_token_id": None}
    config = transformers.GPT2Config(
        vocab_size=net.vocab_size,
        n_positions=net.block_size,
        n_layer=net.depth,
        n_head=net.heads,
        n_embd=net.dim,
        activation_function={"exact": "gelu", "tanh": "gelu_new"}[net.gelu],
        **dict.fromkeys(_DROPOUTS, net.dropout),
        **ends,
    )
    with torch.random.fork_rng(devices=[]):  # the model draws values first, on the CPU
        model = transformers.GPT2LMHeadModel(config)
    biases = {name: torch.zeros_like(b) for name, b in model.state_dict().items() if name.endswith(".bias")}
    embedding = net.lm_head.weight
    model.to(embedding.device, embedding.dtype)
    model.load_state_dict({**biases, **_turned(net.state_dict())})
    return model.train(net.training)


def _opened(folder: Path) -> "GPT2LMHeadModel":
    transformers = _transformers()
    config = folder / "config.json"
    if not config.is_file():
        raise FileNotFoundError(
            f"`source` must be a folder that save_pretrained() has written, with a config.json, got {str(folder)!r};"
            " nothing is downloaded"
        )
    kind = json.loads(config.read_text(encoding="utf-8")).get("model_type")
    if kind != "gpt2":
        raise ValueError(f"`source` must hold a model of type 'gpt2', got {kind!r} in {config}")
    model, told = transformers.GPT2LMHeadModel.from_pretrained(folder, local_files_only=True, output_loading_info=True)
    if missing := sorted(told["missing_keys"]):  # transformers fills them with random values
        raise ValueError(f"{folder} has no {', '.join(missing[:5])}{' …' if len(missing) > 5 else ''}")
    return model


def _settings(model: nn.Module, heads: int | None, dropout: float | None) -> dict[str, Any]:
    """Read from a model's config what its state dict does not contain; raise where `GPT` has no such setting."""
    config = getattr(model, "config", None)
    if getattr(config, "model_type", None) != "gpt2":
        raise ValueError(f"`source` must be a GPT-2 of Hugging Face, got a {type(model).__name__}")
    for key, only in _ONLY.items():
        if (value := getattr(config, key, only)) != only:
            raise ValueError(f"GPT cannot equal a GPT-2 whose {key} is not {only}, got {value}")
    if config.n_inner not in (None, 4 * config.n_embd):
        raise ValueError(f"GPT cannot equal a GPT-2 whose n_inner is not 4 · n_embd, got {config.n_inner}")
    if (activation := config.activation_function) not in _GELU:
        raise ValueError(
            f"GPT cannot equal a GPT-2 whose activation_function is not in {list(_GELU)}, got {activation!r}"
        )
    if heads not in (None, config.n_head):
        raise ValueError(f"`heads` must be those of the model, {config.n_head}, or None, got {heads}")
    if dropout is None:
        given = {key: getattr(config, key) for key in _DROPOUTS}
        if len(set(given.values())) > 1:
            raise ValueError(f"GPT has one probability of dropout, got {given}: choose one by `dropout`")
        dropout = config.resid_pdrop
    return {"heads": config.n_head, "dropout": dropout, "gelu": _GELU[activation]}


def _state(source: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Turn the state of a GPT-2 with or without its head into the complete state of a `GPT`."""
    state = {name: tensor for name, tensor in source.items() if not name.endswith(_CAUSAL_MASKS)}
    if "wte.weight" in state:  # of a GPT2Model
        state = {name if name == "lm_head.weight" else f"transformer.{name}": state[name] for name in state}
    embedding, fused = "transformer.wte.weight", "transformer.h.0.attn.c_attn.weight"
    if missing := [name for name in (embedding, "transformer.wpe.weight", fused) if name not in state]:
        raise ValueError(f"`source` is not a GPT-2: it has no {', '.join(missing)}")
    dim = state[embedding].shape[-1]
    if state[fused].shape != (dim, 3 * dim):
        raise ValueError(
            f"`source` must store its weights (in, out), as Hugging Face does, got {tuple(state[fused].shape)} for"
            f" {fused}; load weights stored (out, in) by load_state_dict()"
        )
    head = state.setdefault("lm_head.weight", state[embedding])
    if not torch.equal(head, state[embedding]):
        raise ValueError("GPT cannot equal a GPT-2 whose lm_head.weight is not tied to transformer.wte.weight")
    return _turned(state)


def _turned(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.T if name.endswith(_STORED_IN_OUT) else tensor for name, tensor in state.items()}


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ImportError(
            "GPT-2 of Hugging Face needs transformers: pip install 'lightning-fire[huggingface]'"
        ) from error
    return transformers
