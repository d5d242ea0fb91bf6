"""Arguments shared by the commands `diagnose` and `reinit`."""

import argparse
from pathlib import Path
from typing import Any, Literal, get_args

from lightning_fire.checkpoints.formats import open_checkpoint
from lightning_fire.checkpoints.model_config import read_config
from lightning_fire.checkpoints.stored import Checkpoint
from lightning_fire.checkpoints.weights import select_weights
from lightning_fire.functional.orthogonal import Coefficients, Scale
from lightning_fire.where import Selection, Weights, WeightView
from lightning_fire.where.presets import PRESETS


def shared_parser(command: str, description: str) -> argparse.ArgumentParser:
    """Return a parser with the arguments that name the checkpoint, select weights and set FIRE's options."""
    parser = argparse.ArgumentParser(prog=f"lightning-fire {command}", allow_abbrev=False, description=description)
    parser.add_argument(
        "checkpoint",
        type=Path,
        help="a Lightning checkpoint, a state dict of torch.save (.pt, .pth, .bin), a .safetensors file, or a folder"
        " with model.safetensors or pytorch_model.bin, whole or with an index",
    )
    parser.add_argument(
        "--key",
        nargs="+",
        default=[],
        help="networks to use from a file of torch.save with several, such as state_dict_ema",
    )
    parser.add_argument(
        "--unsafe-pickle",
        action="store_true",
        help="also load Python objects from files of torch.save; DANGER: this runs any code in the file",
    )
    parser.add_argument(
        "--preset",
        choices=["auto", *PRESETS],
        help="cnn: every matrix and convolution; vit: query and key projections; gpt: every matrix, a fused projection"
        " in three parts; auto: gpt for a causal language model with a config.json, otherwise vit if there is"
        " attention, otherwise cnn (default: auto)",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="JSON",
        help="config.json of a Hugging Face model, or its folder, which gives the order of query, key and value"
        " projections (default: the one in or beside the checkpoint, if any)",
    )
    parser.add_argument(
        "--tied",
        action="store_true",
        default=None,
        help="also select an output layer tied to the token embedding",
    )
    parser.add_argument("--include", nargs="+", metavar="REGEX", help="select only names that match one of these")
    parser.add_argument("--exclude", nargs="+", metavar="REGEX", help="exclude names that match one of these")
    parser.add_argument("--steps", type=_steps, metavar="N", help="Newton-Schulz steps, or exact (default: 10)")
    parser.add_argument("--coefficients", choices=get_args(Coefficients), help="their coefficients (default: cubic)")
    parser.add_argument("--scale", choices=get_args(Scale), help="scale of the new weight (default: paper)")
    return parser


def opened(options: argparse.Namespace) -> Checkpoint:
    """Open the checkpoint that the arguments name."""
    checkpoint = open_checkpoint(options.checkpoint, options.unsafe_pickle, options.key)
    if unknown := [key for key in options.key if key not in checkpoint.keys]:
        held = ", ".join(filter(None, checkpoint.keys))
        raise ValueError(f"--key: {checkpoint.path} has no {unknown[0]}, but {held or 'one network without a key'}")
    return checkpoint


def selection_of(options: argparse.Namespace, checkpoint: Checkpoint) -> Selection[WeightView]:
    """Select weights of a checkpoint as the arguments say."""
    weights = Weights(options.preset or "auto", options.include, options.exclude)
    config = read_config(options.config) if options.config else checkpoint.config
    return select_weights(checkpoint.tensors, weights, config, bool(options.tied))


def fire_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of FIRE: those that were given, and the defaults of the others."""
    defaults = {"steps": 10, "coefficients": "cubic", "scale": "paper"}
    given = {name: value for name in defaults if (value := getattr(options, name)) is not None}
    return {**defaults, **given}


def _steps(word: str) -> int | Literal["exact"]:
    if word == "exact":
        return "exact"
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, or exact, got {word!r}")
    return int(word)
