"""A number or a word out of range is an error where a method is made."""

from functools import partial

import pytest
from torch.nn import Linear

from lightning_fire import FeatureRank, HareAndTortoise, PlasticityCallback, methods


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
        (methods.L2Init, {"strength": -1}, "`strength` must be at least 0, got -1"),
        (methods.Parseval, {"strength": -1}, "`strength` must be at least 0, got -1"),
        (methods.Parseval, {"strength": 0.1, "scale": 0}, "`scale` must be above 0, got 0"),
        (methods.SpectralRegularization, {"strength": -1}, "`strength` must be at least 0, got -1"),
        (methods.IsometryDecay, {"strength": -1}, "`strength` must be at least 0, got -1"),
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
