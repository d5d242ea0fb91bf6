"""Architectures by library and name, and how to build each from its config."""

import importlib
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

NAMES = Path(__file__).with_name("names.txt")
SMALL = ("tiny", "nano", "_s", "18", "26", "_b0", "small", "xs")
Build = Callable[[], nn.Module]
Found = Iterator[tuple[str, Build]]

NEEDED = {  # what has no default that works
    "esm": {"vocab_size": 33, "pad_token_id": 1},
    **{key: {"head_dim": 32} for key in ["ministral", "hunyuan_v1_moe"]},
    "nemotron": {"num_key_value_heads": 48},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1},
    "reformer": {"is_decoder": True},
    **{key: {"prediction_length": 8} for key in ["informer", "autoformer", "time_series_transformer"]},
}  # fmt: skip
WITHOUT_AUTO = {
    "clap_audio_model": "ClapAudioModel", "zoedepth": "ZoeDepthForDepthEstimation",
    "superpoint": "SuperPointForKeypointDetection", "superglue": "SuperGlueForKeypointMatching",
}  # fmt: skip
DIFFUSERS = {
    "HunyuanDiT2DModel": {"sample_size": 32, "patch_size": 2, "hidden_size": 1408, "cross_attention_dim": 64},
    "LatteTransformer3DModel": {"sample_size": 32, "patch_size": 2, "in_channels": 4, "caption_channels": 64},
    "LuminaNextDiT2DModel": {"num_kv_heads": 8},
}
OTHER_HEADS = {  # than the defaults of these have
    "falcon": {"new_decoder_architecture": True, "num_attention_heads": 8, "num_kv_heads": 2, "hidden_size": 64},
    "phi3": {"num_key_value_heads": 8},
    "gpt_bigcode": {"multi_query": False},
    "bloom": {"n_head": 4},
}
SMP = {
    "resnet18": ["Unet", "UnetPlusPlus", "MAnet", "Linknet", "FPN", "PSPNet", "PAN", "DeepLabV3", "UPerNet"],
    "mit_b0": ["Unet", "FPN", "Segformer"],
    "tu-vit_tiny_patch16_224": ["DPT"],
}  # fmt: skip
PYG = {  # arguments that are other than (8, 16)
    **{name: (8, 16, 2, 4) for name in ("GCN", "GraphSAGE", "GIN", "GAT", "EdgeCNN")},
    "PMLP": (8, 16, 4, 2), "GraphUNet": (8, 16, 4, 2), "SchNet": (), "DimeNetPlusPlus": (16, 1, 2, 8, 16, 16, 7, 6),
    "ViSNet": (), "SGFormer": (8, 16, 4), "Polynormer": (8, 16, 4), "AttentiveFP": (8, 16, 4, 3, 2, 2),
    "NeuralFingerprint": (8, 16, 4, 2), "MLP": ([8, 16, 4],), "LINKX": (10, 8, 16, 4, 2), "ChebConv": (8, 16, 3),
    "RGCNConv": (8, 16, 5), "FastRGCNConv": (8, 16, 5), "RGATConv": (8, 16, 5), "GMMConv": (8, 16, 3, 5),
    "GatedGraphConv": (16, 2), "GCN2Conv": (16, 0.1), "CGConv": (16,), "HEATConv": (8, 16, 3, 4, 6, 6, 6),
    "LightGCN": (8, 16, 2), "LPFormer": (8, 16), "RECT_L": (8, 16),
    "PDNConv": (8, 16, 4, 8), "SignedConv": (8, 16, True), "DNAConv": (16,),
}  # fmt: skip
_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers")


def on_meta(build: Build) -> nn.Module:
    """Build an architecture without values; with values where its constructor computes with them."""
    try:
        with torch.device("meta"):
            return build()
    except (RuntimeError, NotImplementedError):
        return build()


def names(section: str) -> list[str]:
    """Return the names in a section of `names.txt`."""
    (text,) = (text for text in NAMES.read_text(encoding="utf-8").split("[") if text.startswith(f"{section}]"))
    return text.partition("]")[2].split()


def architectures() -> Iterator[tuple[str, str, Build]]:
    """Yield library, name and how to build it, for the libraries that are installed."""
    for library, found in LIBRARIES.items():
        try:
            module = importlib.import_module(library)
        except ImportError:
            continue
        yield from ((library, name, build) for name, build in found(module))


def _torchvision(library: Any) -> Found:
    for name in names("torchvision"):
        options: dict[str, Any] = {"weights": None}
        if any(word in name for word in ("rcnn", "retina", "fcos", "ssd", "fcn", "deeplab", "lraspp")):
            options["weights_backbone"] = None
        if name in ("googlenet", "inception_v3"):
            options["init_weights"] = False
        yield name, partial(library.models.get_model, name, **options)


def _timm(library: Any) -> Found:
    """Yield one architecture of each file of timm: of the small ones that with the shortest name."""
    for module in library.list_modules():
        known = library.list_models(module=module)
        small = [name for name in known if any(word in name for word in SMALL)]
        for name in sorted(small or known, key=lambda name: (len(name), name))[:1]:
            yield name, partial(library.create_model, name)


def _transformers(library: Any) -> Found:
    known = set(library.models.auto.configuration_auto.CONFIG_MAPPING_NAMES)
    for kind in names("transformers"):
        if kind in known:
            yield kind, partial(huggingface, kind, NEEDED.get(kind))
    for kind, options in OTHER_HEADS.items():
        yield f"{kind}, {', '.join(options)}", partial(huggingface, kind, options)


def huggingface(kind: str, options: dict[str, Any] | None = None, most_layers: int = 4) -> nn.Module:
    """Build a model of transformers with its default config but fewer layers, with a language head if any."""
    import transformers

    config = transformers.AutoConfig.for_model(kind, **(options or {}))
    for part in [config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", {}))]:
        for name in _LAYERS:
            number, types = getattr(part, name, None), getattr(part, "layer_types", None)
            if isinstance(number, int) and number > most_layers and name not in getattr(part, "attribute_map", {}):
                try:
                    setattr(part, name, most_layers)
                    if isinstance(types, list):
                        part.layer_types = [*dict.fromkeys(types), *types][:most_layers]
                except (AttributeError, NotImplementedError, ValueError, TypeError):
                    continue
    if kind in WITHOUT_AUTO:
        return getattr(transformers, WITHOUT_AUTO[kind])(config)
    try:
        return transformers.AutoModelForCausalLM.from_config(config)
    except ValueError:
        return transformers.AutoModel.from_config(config)


def _diffusers(library: Any) -> Found:
    for name in names("diffusers"):
        if hasattr(library, name):
            yield name, partial(_fewer_layers, getattr(library, name), **DIFFUSERS.get(name, {}))


def _fewer_layers(kind: type[nn.Module], most_layers: int = 4, **options: Any) -> nn.Module:
    defaults = {name: parameter.default for name, parameter in inspect.signature(kind.__init__).parameters.items()}
    layers = {name: number for name, number in defaults.items() if name.startswith("num_") and name.endswith("layers")}
    fewer = {name: most_layers for name, number in layers.items() if type(number) is int and number > most_layers}
    return kind(**{**fewer, **options})


def _torch_geometric(library: Any) -> Found:
    layers = importlib.import_module("torch_geometric.nn")
    for name in [*PYG, *names("torch_geometric.nn")]:
        yield name, partial(getattr(layers, name), *PYG.get(name, (8, 16)))


def _litgpt(library: Any) -> Found:
    for name in names("litgpt"):
        yield name, lambda name=name: library.GPT(library.Config.from_name(name, n_layer=2))


def _torchrl(library: Any) -> Found:
    modules = importlib.import_module("torchrl.modules")
    yield "MLP", partial(modules.MLP, in_features=4, out_features=2, num_cells=[16, 16])
    noisy = {"layer_class": modules.NoisyLinear}
    yield "MLP, noisy", partial(modules.MLP, in_features=4, out_features=2, num_cells=[16], **noisy)
    yield "ConvNet", partial(modules.ConvNet, in_features=3, num_cells=[8, 8])
    yield "LSTMModule", lambda: modules.LSTMModule(4, 8, in_key="a", out_key="b").lstm
    yield "GRUModule", lambda: modules.GRUModule(4, 8, in_key="a", out_key="b").gru
    for shared in (True, False):
        agents = {"n_agents": 3, "centralized": False, "share_params": shared}
        sizes = {"n_agent_inputs": 4, "n_agent_outputs": 2, "depth": 2, "num_cells": 16}
        yield f"MultiAgentMLP, share_params={shared}", partial(modules.MultiAgentMLP, **agents, **sizes)
        convolutions = {"in_features": 3, "num_cells": [8, 8], "kernel_sizes": 3}
        yield f"MultiAgentConvNet, share_params={shared}", partial(modules.MultiAgentConvNet, **agents, **convolutions)
    yield "DecisionTransformer", lambda: modules.DecisionTransformer(state_dim=4, action_dim=2)


def _smp(library: Any) -> Found:
    for encoder, kinds in SMP.items():
        for kind in kinds:
            yield f"{kind}, {encoder}", partial(getattr(library, kind), encoder, encoder_weights=None)


LIBRARIES: dict[str, Callable[[Any], Found]] = {
    "torchvision": _torchvision,
    "timm": _timm,
    "transformers": _transformers,
    "diffusers": _diffusers,
    "torch_geometric": _torch_geometric,
    "litgpt": _litgpt,
    "torchrl": _torchrl,
    "segmentation_models_pytorch": _smp,
}
