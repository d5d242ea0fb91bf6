"""A user's script with annotations, checked by `mypy --strict` in `make lint`: the public types as a user sees them.

`assert_type` is an error where a public function lacks an annotation or returns another type.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from typing_extensions import assert_type

import lightning_fire as lf
from lightning_fire import functional as F
from lightning_fire import methods
from lightning_fire.checkpoints import Diagnosis, diagnose, diagnosis_of, open_checkpoint, select_weights
from lightning_fire.integrations.huggingface import PlasticityCallback as HuggingFaceCallback
from lightning_fire.integrations.stable_baselines3 import PlasticityCallback as StableBaselinesCallback
from lightning_fire.methods import Report
from lightning_fire.where import Selection, WeightView


def functions(weight: Tensor) -> float:
    """Use the pure functions."""
    new = F.fire(weight, steps=5, coefficients="quintic", scale="procrustes")
    assert_type(new, Tensor)
    assert_type(F.dfi_normalized(new), Tensor)
    assert_type(F.sfe(weight, new), Tensor)
    assert_type(F.shrink_and_perturb(weight, new, strength=0.5), Tensor)
    assert_type(F.orthogonalize(weight, 5), Tensor)
    return F.dfi_normalized(new).item()


def schedules() -> Sequence[lf.Schedule]:
    """Make one schedule of each kind."""
    return [
        lf.AtNewData(skip_first=False),
        lf.AtEpochs([3, 5]),
        lf.AtFraction(0.5),
        lf.EveryNEpochs(2),
        lf.EveryNSteps(100),
        lf.WhenMetric("val/accuracy", below=0.5),
        lf.AnyOf([lf.AtNewData(), lf.AtEpochs([9])]),
    ]


def callbacks() -> list[lf.PlasticityCallback]:
    """Make callbacks of Lightning."""
    where = lf.Weights("cnn", include=["conv"], exclude=["head"])
    log = lf.Log(curvature=False)
    return [
        lf.FIRECallback(when=schedules(), where=where, steps="exact", scale="auto", optimizer_state="all", log=log),
        lf.PlasticityCallback(lf.ShrinkAndPerturb(strength=0.8)),
        lf.PlasticityCallback(lf.FullReset(fresh_seed=0)),
        lf.PlasticityCallback(lf.DASH()),
    ]


def plain_loop(model: nn.Module) -> Report:
    """Use methods in a training loop of one's own."""
    optimizer = torch.optim.Adam(model.parameters())
    selection = lf.Weights().select(model)
    assert_type(selection, Selection[WeightView])
    names: list[str] = [view.name for view in selection]
    initial = lf.initial_values(model)
    assert_type(lf.shrink_and_perturb_(model, initial, strength=0.8, optimizers=[optimizer]), Report)
    batch = torch.randn(8, 3)
    training = lf.Loop(optimizer, forward=lambda: model(batch), initial=initial)
    assert_type(lf.ReDo()(model, training), Report)
    penalty = lf.L2Init(strength=1e-3).attach(model, training)
    assert_type(penalty, methods.Attached)
    penalty.before_step(optimizer)
    report = lf.fire_(model, lf.Weights(), steps=5, optimizers=optimizer)
    assert_type(report, Report)
    print(names, penalty.metrics(), report["dfi_normalized_after"])
    return report


def files(path: Path) -> list[Diagnosis]:
    """Read a checkpoint file."""
    checkpoint = open_checkpoint(path)
    norm: float = diagnosis_of(torch.eye(3), steps="exact").norm
    rows = diagnose(checkpoint, select_weights(checkpoint.tensors, lf.Weights()))
    assert_type(rows[0].dfi_ratio, float)
    print(norm)
    return rows


def other_trainers() -> tuple[HuggingFaceCallback, StableBaselinesCallback]:
    """Make callbacks of other libraries."""
    return HuggingFaceCallback(methods.FIRE(), when=lf.AtFraction(0.5)), StableBaselinesCallback(methods.ReDo())


if __name__ == "__main__":
    functions(torch.randn(4, 3))
    callbacks()
    plain_loop(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
