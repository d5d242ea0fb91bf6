"""A number or a word out of range is an error where a method is made."""

from functools import partial

import pytest
from torch.nn import Linear

from lightning_fire import (
    AnyOf,
    AtFraction,
    AtNewData,
    FeatureRank,
    FIRECallback,
    HareAndTortoise,
    Log,
    PlasticityCallback,
    PlasticityMonitor,
    Weights,
    announce_new_data,
    methods,
)


@pytest.mark.parametrize(
    ("build", "options", "message"),
    [
        (methods.FIRE, {"steps": 0}, "`steps` must be an integer of at least 1, or 'exact', got 0"),
        (methods.FIRE, {"steps": "ten"}, "`steps` must be an integer of at least 1, or 'exact', got 'ten'"),
        (methods.FIRE, {"coefficients": "septic"}, "`coefficients` must be one of"),
        (methods.FIRE, {"scale": "kaiming"}, "`scale` must be"),
        (methods.FIRE, {"optimizer_state": "some"}, "`optimizer_state` must be 'keep', 'touched' or 'all', got 'some'"),
        (methods.DASH, {"alpha": 0}, r"`alpha` must be in \(0, 1\], got 0"),
        (methods.DASH, {"minimum": 2}, r"`minimum` must be in \[0, 1\], got 2"),
        (methods.DASH, {"num_batches": 0}, "`num_batches` must be at least 1, got 0"),
        (methods.DASH, {"optimizer_state": "x"}, "`optimizer_state` must be"),
        (methods.FullReset, {"target": "fire"}, "`target` must be 'initial' or 'isometry', got 'fire'"),
        (methods.FullReset, {"optimizer_state": "x"}, "`optimizer_state` must be"),
        (methods.ShrinkAndPerturb, {"strength": 2}, "`strength` must be in"),
        (methods.ShrinkAndPerturb, {"perturb": -1}, "`perturb` must be at least 0"),
        (methods.ShrinkAndPerturb, {"optimizer_state": "x"}, "`optimizer_state` must be"),
        (methods.PlasticityInjection, {"head": "net.5", "optimizer_state": "x"}, "`optimizer_state` must be"),
        (methods.ReDo, {"threshold": -1}, "`threshold` must be at least 0, got -1"),
        (methods.ReDo, {"num_batches": 0}, "`num_batches` must be at least 1, got 0"),
        (methods.ReDo, {"score": "x"}, "`score` must be 'activation', 'pre_activation' or 'gradient', got 'x'"),
        (methods.ContinualBackprop, {"replacement_rate": 2}, r"`replacement_rate` must be in \[0, 1\], got 2"),
        (methods.ContinualBackprop, {"maturity": -1}, "`maturity` must be at least 0, got -1"),
        (methods.ContinualBackprop, {"decay": 1.0}, r"`decay` must be in \[0, 1\), got 1.0"),
        (methods.ContinualBackprop, {"score": "gradient"}, "`score` must be 'activation' or 'pre_activation', got"),
        (methods.SelfNormalizedReset, {"rejection": 0}, "`rejection` must be between 0 and 1, got 0"),
        (methods.SelfNormalizedReset, {"rejection": 1.0}, "`rejection` must be between 0 and 1, got 1.0"),
        (methods.SelfNormalizedReset, {"refresh_every": 0}, "`refresh_every` must be at least 1, got 0"),
        (methods.SelfNormalizedReset, {"max_silence": 1}, "`max_silence` must be at least 2, got 1"),
        (methods.SelfNormalizedReset, {"expansion": 0.5}, "`expansion` must be at least 1, got 0.5"),
        (methods.SelfNormalizedReset, {"score": "gradient"}, "`score` must be 'activation' or 'pre_activation', got"),
        (methods.SelectiveWeightReinit, {"factor": -1}, "`factor` must be at least 0, got -1"),
        (
            methods.SelectiveWeightReinit,
            {"factor": 2, "pruning": "proportional"},
            r"`factor` must be in \[0, 1\], got 2",
        ),
        (methods.SelectiveWeightReinit, {"every": 0}, "`every` must be at least 1, got 0"),
        (methods.SelectiveWeightReinit, {"utility": "x"}, "`utility` must be 'gradient' or 'magnitude', got 'x'"),
        (methods.SelectiveWeightReinit, {"pruning": "x"}, "`pruning` must be 'threshold' or 'proportional', got 'x'"),
        (methods.SelectiveWeightReinit, {"redraw": "x"}, "`redraw` must be 'resample' or 'mean', got 'x'"),
        (methods.SelectiveWeightReinit, {"optimizer_state": "all"}, "`optimizer_state` must be 'keep' or 'touched', g"),
        (methods.L2Init, {"strength": -1}, "`strength` must be at least 0, got -1"),
        (methods.Parseval, {"strength": -1}, "`strength` must be at least 0, got -1"),
        (methods.Parseval, {"strength": 0.1, "scale": 0}, "`scale` must be above 0, got 0"),
        (methods.SpectralRegularization, {"strength": -1}, "`strength` must be at least 0, got -1"),
        (methods.IsometryDecay, {"strength": -1}, "`strength` must be at least 0, got -1"),
        (methods.WeightClipping, {"bound": 0}, "`bound` must be above 0, got 0"),
        (methods.SoftWeightRescaling, {"strength": 2}, r"`strength` must be in \[0, 1\], got 2"),
        (methods.SoftWeightRescaling, {"classifier": -1}, r"`classifier` must be in \[0, 1\], got -1"),
        (FeatureRank, {"lr": -1}, "`lr` must be at least 0, got -1"),
        (FeatureRank, {"lr": 0.1, "every_n_batches": 0}, "`every_n_batches` must be at least 1, got 0"),
        (FeatureRank, {"lr": 0.1, "start_chunk": -1}, "`start_chunk` must be at least 0, got -1"),
        (HareAndTortoise, {"momentum": -0.1}, r"`momentum` must be in \[0, 1\), got -0.1"),
        (partial(methods.Tortoise, Linear(1, 1)), {"momentum": 1.0}, r"`momentum` must be in \[0, 1\), got 1.0"),
        (HareAndTortoise, {"momentum": 1.0}, r"`momentum` must be in \[0, 1\), got 1.0"),
        (PlasticityCallback, {"method": methods.ReDo(), "start_chunk": -1}, "`start_chunk` must be at least 0, got -1"),
    ],
)
def test_out_of_range(build, options, message):
    with pytest.raises(ValueError, match=message):
        build(**options)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: methods.FIRE(Linear(1, 1)), r"got Linear: a method is made without a model, .* by FIRE\(\)\(model"),
        (lambda: methods.FIRE(where=Weights), r"got the class Weights: write Weights\(…\)"),
        (lambda: FIRECallback(Linear(1, 1)), "`when` must be a schedule .* got Linear$"),
        (lambda: FIRECallback(AtNewData), r"got the class AtNewData: write AtNewData\(…\)"),
        (lambda: FIRECallback(log=True), "`log` must be a Log, .* got True"),
        (lambda: PlasticityCallback(methods.FIRE), "`method` must be a method .* got the class FIRE$"),
        (lambda: PlasticityCallback(FIRECallback()), "`method` must be a method .* got FIRECallback$"),
        (lambda: PlasticityMonitor(units=Weights()), r"must be a selection of the kind HiddenUnits\(…\)"),
        (lambda: PlasticityCallback(methods.FIRE(), start_chunk="1"), "`start_chunk` must be a whole number of at"),
        (
            lambda: PlasticityMonitor(every_n_epochs=0.5),
            "`every_n_epochs` must be a whole number of at least 1",
        ),
        (lambda: PlasticityMonitor(dormancy_threshold=None), "`dormancy_threshold` must be a number of at least 0"),
        (lambda: Log(True), "`name` must be a text, got True"),
        (lambda: Log(validation_batches=1.5), "`validation_batches` must be a whole number of at least 0, got 1.5"),
        (lambda: AtFraction("half"), "`fraction` must be strictly between 0 and 1, got 'half'"),
        (lambda: AnyOf(AtNewData()), "`schedules` must be a list of at least one schedule, got AtNewData"),
        (lambda: announce_new_data(Linear(1, 1)), "`trainer` must be a Trainer, got Linear"),
    ],
)
def test_another_kind_of_argument_is_named_in_a_sentence(build, message):
    with pytest.raises((TypeError, ValueError), match=message):
        build()
