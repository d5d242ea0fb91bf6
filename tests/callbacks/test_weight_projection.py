"""`WeightProjection` through real fits over growing data."""

import lightning.pytorch as pl
import pytest
import reference
import torch
from small_training import fitted, initial_state, state_of
from tolerances import assert_near
from torch import nn

from lightning_fire import PlasticityCallback, WeightProjection, Weights


class AfterEachStep(pl.Callback):
    """Keeps the state after each optimizer step; stands before or after the method."""

    def __init__(self):
        self.states = []

    def on_train_batch_end(self, trainer, pl_module, *args):
        self.states.append(state_of(pl_module))


@pytest.mark.parametrize(
    ("where", "projected"),
    [(None, {"net.0.weight", "net.3.weight"}), (Weights(preset="cnn", include=["net.3"]), {"net.3.weight"})],
    ids=["default", "selected"],
)
def test_each_step_ends_at_the_initial_norm_and_nothing_else_moves(where, projected):
    before, after = AfterEachStep(), AfterEachStep()
    fitted(before, PlasticityCallback(WeightProjection(where)), after)
    initial = initial_state()
    assert len(after.states) == 24
    for one, other in zip(before.states, after.states, strict=True):
        for name, value in other.items():
            if name in projected:
                assert_near(value, reference.project_to_norm(one[name], initial[name].double().norm().item()).float())
                assert not torch.equal(one[name], value)
            else:
                assert torch.equal(one[name], value), name


def test_parts_of_a_fused_weight_have_norms_of_their_own():
    model = nn.ModuleList([nn.MultiheadAttention(8, 2), nn.LayerNorm(8), nn.Linear(8, 2)])
    projection = WeightProjection().attach(model)
    fused = model[0].in_proj_weight
    before = [part.norm().item() for part in fused.chunk(3)]
    with torch.no_grad():
        fused[:8].mul_(5.0)
    projection.after_step()
    assert [part.norm().item() for part in fused.chunk(3)] == pytest.approx(before)


def test_warns_of_a_network_without_normalization():
    with pytest.warns(UserWarning, match="Sequential has no normalization layer"):
        WeightProjection().attach(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)))


def test_a_single_weight_is_taken_for_the_output():
    with pytest.raises(ValueError, match="Linear has no weight but weight, which is taken for its output layer"):
        WeightProjection().attach(nn.Linear(2, 2))
