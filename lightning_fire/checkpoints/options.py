"""Command line arguments that `diagnose` and `reinit` share."""

import argparse
from pathlib import Path
from typing import Any, Literal, get_args

from lightning_fire.functional.orthogonal import Coefficients, Scale
from lightning_fire.where.weights import PRESETS

CHECKPOINT_HELP = (
    "a Lightning checkpoint, a state dict of torch.save (.pt, .pth, .bin), a .safetensors file, or a folder with"
    " model.safetensors or model.safetensors.index.json"
)


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name the checkpoint and how to read it."""
    parser.add_argument("checkpoint", type=Path, help=CHECKPOINT_HELP)
    parser.add_argument(
        "--unsafe-pickle",
        action="store_true",
        help="also load Python objects from files of torch.save; DANGER: this runs any code that the file contains",
    )


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that select weights."""
    parser.add_argument(
        "--preset",
        choices=["auto", *PRESETS],
        help="cnn: every matrix and convolution; vit: query and key projections; gpt: every matrix, a fused projection"
        " in three parts; auto: vit where there is attention, otherwise cnn (default: auto)",
    )
    parser.add_argument("--include", nargs="+", metavar="REGEX", help="take only what one of these matches")
    parser.add_argument("--exclude", nargs="+", metavar="REGEX", help="leave out what one of these matches")


def add_fire(parser: argparse.ArgumentParser) -> None:
    """Add the options of FIRE. Those not given are None."""
    parser.add_argument("--steps", type=_steps, metavar="N", help="Newton-Schulz steps, or exact (default: 10)")
    parser.add_argument("--coefficients", choices=get_args(Coefficients), help="of the steps (default: cubic)")
    parser.add_argument("--scale", choices=get_args(Scale), help="of the new weight (default: paper)")


def fire_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of FIRE that were given."""
    return {name: value for name in ("steps", "coefficients", "scale") if (value := getattr(options, name)) is not None}


def _steps(word: str) -> int | Literal["exact"]:
    if word == "exact":
        return "exact"
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, or exact, got {word!r}")
    return int(word)
