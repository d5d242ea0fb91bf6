"""`FIRECallback` through real fits over growing data."""

import logging
import math

import pytest
import reference
import torch
from lightning.pytorch import Callback
from lightning.pytorch.plugins import MixedPrecision
from small_training import OwnSequential, PlainData, PlainModule, assert_same_weights, fitted, snapshots_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tolerances import assert_near
from torch import nn

from lightning_fire import AtEpochs, AtNewData, FIRECallback, Log, Weights
from lightning_fire.functional import dfi, dfi_normalized

Snapshots = snapshots_of(FIRECallback)
WEIGHTS = ["net.0.weight", "net.3.weight", "net.5.weight"]


@pytest.mark.parametrize(
    "options", [{}, {"steps": 5, "scale": "procrustes"}, {"steps": "exact"}, {"coefficients": "muon"}]
)
def test_the_selected_weights_become_fire_of_themselves_and_nothing_else_moves_by_a_bit(options):
    callback = Snapshots(where=Weights(exclude=[r"net\.3"]), **options)
    fitted(callback)
    assert len(callback.seen) == 2
    for before, after, _ in callback.seen:
        for name in before:
            if name in ("net.0.weight", "net.5.weight"):
                assert_near(after[name], reference.fire(before[name], **options))
            else:
                assert torch.equal(after[name], before[name]), name


def test_logged_values_equal_the_formulas(tmp_path):
    callback = Snapshots()
    fitted(callback, folder=tmp_path)
    log = EventAccumulator(str(tmp_path)).Reload()

    def logged(tag):
        return [event.value for event in log.Scalars(tag)]

    assert [event.step for event in log.Scalars("fire/event")] == [4, 12]
    assert logged("fire/event") == [1, 2]
    for index, (before, after, _) in enumerate(callback.seen):
        old, new = [before[name] for name in WEIGHTS], [after[name] for name in WEIGHTS]
        mean = {
            "fire.raw/dfi_before": torch.stack([dfi(w) for w in old]).mean(),
            "fire.raw/dfi_after": torch.stack([dfi(w) for w in new]).mean(),
            "fire/dfi_normalized_before": torch.stack([dfi_normalized(w) for w in old]).mean(),
            "fire/dfi_normalized_after": torch.stack([dfi_normalized(w) for w in new]).mean(),
        }
        sfe = sum((a - b).square().sum() for a, b in zip(old, new, strict=True))
        mean["fire/sfe"] = sfe
        mean["fire/sfe_normalized"] = sfe / sum(a.square().sum() for a in old)
        mean["fire.layers/dfi_after/net.3.weight"] = dfi(new[1])
        mean["fire.layers/sfe_normalized/net.3.weight"] = (old[1] - new[1]).square().sum() / old[1].square().sum()
        for tag, value in mean.items():
            assert math.isclose(logged(tag)[index], value.item(), rel_tol=1e-4, abs_tol=1e-6), tag


class Watches(Callback):
    """Reads what other callbacks can watch."""

    def __init__(self):
        self.seen = []

    def on_train_epoch_end(self, trainer, pl_module):
        self.seen.append(trainer.callback_metrics.get("fire/sfe_normalized"))


def test_other_callbacks_can_watch_the_metrics_from_the_first_event_on():
    watches, fire = Watches(), Snapshots()
    fitted(fire, watches)
    assert watches.seen[:2] == [None, None]
    for epoch, event in ((2, 0), (4, 1)):
        assert watches.seen[epoch].item() == pytest.approx(fire.seen[event][2]["fire/sfe_normalized"], rel=1e-5)


@pytest.mark.parametrize("precision", ["64-true", "bf16-true", "bf16-mixed"])
def test_precisions(precision):
    callback = Snapshots()
    fitted(callback, precision=precision)
    before, after, _ = callback.seen[0]
    for name in WEIGHTS:
        assert after[name].dtype == before[name].dtype
        assert_near(after[name], reference.fire(before[name]))


def test_half_precision_with_a_loss_scale():
    """Lightning itself would take bfloat16 on a CPU."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    callback = Snapshots()
    fitted(callback, plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler)])
    before, after, _ = callback.seen[0]
    for name in WEIGHTS:
        assert after[name].dtype == torch.float32
        assert_near(after[name], reference.fire(before[name]))
    assert scaler.get_scale() == 2.0**8
    assert callback.num_events == 2


def test_compiled_layers_use_the_new_weights_without_recompilation():
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    class Compiled(PlainModule):
        def __init__(self):
            super().__init__()
            self.net = OwnSequential(*self.net)
            self.net.compile(backend=backend, dynamic=False)

    by_steps = []
    for when in (AtEpochs([5]), AtEpochs([1, 3, 5])):
        torch.compiler.reset()
        compiled.clear()
        options = {"log": Log(curvature=False), "optimizer_state": "all"}
        torch.manual_seed(0)
        module = fitted(FIRECallback(when, **options), module=Compiled(), data=PlainData())
        by_steps.append(len(compiled))
        assert_same_weights(module, fitted(FIRECallback(when, **options), data=PlainData()))
    assert by_steps[0] == by_steps[1] > 0


# --- bad input -------------------------------------------------------------------------------------------------------


def test_tensorboard_shows_the_singular_values_of_each_layer_before_and_after(tmp_path):
    """As histograms that hold them all: their sum of squares is the squared norm of the weight."""
    callback = snapshots_of(FIRECallback)(steps="exact", scale="none")
    fitted(callback, folder=tmp_path)
    log = EventAccumulator(str(tmp_path), size_guidance={"histograms": 0})
    log.Reload()
    for moment in ("before", "after"):
        for layer in ("net.0", "net.3", "net.5"):
            events = log.Histograms(f"fire.singular_values_{moment}/{layer}.weight")
            assert [event.step for event in events] == [4, 12]
            for event, (before, after, _) in zip(events, callback.seen, strict=True):
                weight = (before if moment == "before" else after)[f"{layer}.weight"]
                assert event.histogram_value.num == min(weight.shape)
                assert event.histogram_value.sum_squares == pytest.approx(weight.square().sum().item(), rel=1e-3)


def test_layers_need_not_be_logged(tmp_path):
    fitted(FIRECallback(log=Log(layers=False)), folder=tmp_path)
    log = EventAccumulator(str(tmp_path))
    log.Reload()
    assert not log.Tags()["histograms"]
    assert "fire/sfe" in log.Tags()["scalars"]
    assert not any(tag.startswith("fire.layers") for tag in log.Tags()["scalars"])


@pytest.mark.parametrize(
    ("when", "said"),
    [
        (None, "AtNewData(skip_first=True); new data comes when GrowingData.chunk changes from 0. print("),
        (AtEpochs([1]), "AtEpochs(epochs=(1,)). print("),
        ([AtEpochs([1]), AtNewData()], "new data comes when GrowingData.chunk changes from 0. print("),
    ],
)
def test_it_logs_before_training_when_it_will_act_and_on_what(when, said, caplog):
    with caplog.at_level(logging.INFO):
        fitted(FIRECallback(when))
    (line,) = (text for text in caplog.messages if "will act on" in text)
    assert (
        line.startswith("FIRECallback will act on 3 of 3 weight matrices, preset cnn (net.0.weight … net.5.weight), ")
        and said in line
    )


def test_its_lines_have_a_logger_of_their_own(caplog):
    with caplog.at_level(logging.WARNING, logger="lightning_fire"), caplog.at_level(logging.INFO):
        fitted(FIRECallback())
    assert "`Trainer.fit` stopped" in caplog.text and "FIRECallback" not in caplog.text


def test_the_first_metrics_of_an_event_are_scale_invariant(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        fitted(FIRECallback(log=Log(curvature=False)), folder=tmp_path, max_epochs=3)
    (line,) = (text for text in caplog.messages if "acted at" in text)
    shown = [part.split()[0] for part in line.partition("(")[2].split(", ")]
    assert shown == ["dfi_normalized", "sfe_normalized", "seconds", "norm", "preset"]
    assert line.endswith("; 3 of 3 weight matrices, preset cnn)")
    tags = EventAccumulator(str(tmp_path)).Reload().Tags()["scalars"]
    assert {tag for tag in tags if tag.startswith("fire/dfi")} == {
        "fire/dfi_normalized_before",
        "fire/dfi_normalized_after",
    }


def test_a_large_matrix_of_unknown_layout_is_named_before_training(caplog):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.query_key_value = nn.Linear(8, 24)

        def forward(self, x):
            return self.query_key_value(x).tanh().sum(-1, keepdim=True)

    class Module(PlainModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, 8), Attention(), nn.Linear(1, 3))

    fitted(FIRECallback(where=Weights("cnn")), module=Module(), max_epochs=1)
    left_out = "leaves out net.1.query_key_value.weight: fused, rows in an order that is not known"
    assert sum(left_out in text for text in caplog.messages) == 1
