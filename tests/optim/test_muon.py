"""`Muon`: its steps against the slow version and torch's own, its AdamW part against torch's, its groups, `UseMuon`."""

import pytest
import reference
import torch
import torchvision
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from small_training import GrowingData, PlainModule, assert_same_weights, fitted, trainer
from torch import nn

from lightning_fire import (
    EveryNSteps,
    HiddenMatrices,
    Muon,
    OptimizerReset,
    PlasticityCallback,
    ReDo,
    UseMuon,
    muon_groups,
)
from lightning_fire.functional import muon_direction


def stepped(weight, gradients, use_muon=True, **options):
    """Do a step for each gradient; return the weight."""
    parameter = nn.Parameter(weight.clone(memory_format=torch.preserve_format))
    optimizer = Muon([{"params": [parameter], "use_muon": use_muon}], **options)
    for gradient in gradients:
        parameter.grad = gradient.clone(memory_format=torch.preserve_format)
        optimizer.step()
    return parameter.detach()


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5), (8, 2, 3, 3), (32, 2, 3, 3), (4, 3, 2), (3, 1)])
@pytest.mark.parametrize(
    "options",
    [{}, {"weight_decay": 0.3}, {"nesterov": False, "momentum": 0.8}, {"scale": "match_rms_adamw"}],
    ids=str,
)
def test_steps_are_those_of_the_slow_version(shape, options):
    weight, gradients = torch.randn(shape), [torch.randn(shape) for _ in range(3)]
    slow = {{"weight_decay": "decay"}.get(key, key): value for key, value in options.items()}
    expected = reference.muon(weight, gradients, lr=0.05, **slow)
    torch.testing.assert_close(stepped(weight, gradients, lr=0.05, **options).double(), expected, rtol=1e-4, atol=1e-5)


def test_channels_last_weights_take_the_same_steps():
    weight, gradients = torch.randn(8, 4, 3, 3), [torch.randn(8, 4, 3, 3) for _ in range(2)]
    last = {"memory_format": torch.channels_last}
    other = stepped(weight.to(**last), [gradient.to(**last) for gradient in gradients])
    assert other.is_contiguous(**last)
    torch.testing.assert_close(other, stepped(weight, gradients))


def test_a_convolution_is_scaled_by_its_flattened_shape():
    """By the last two dimensions, 3 × 3, the factor would be 1; it is √(72 / (4 · 9))."""
    step = stepped(torch.zeros(72, 4, 3, 3), [torch.randn(72, 4, 3, 3)], lr=1.0)
    sigma = torch.linalg.svdvals(step.flatten(1))  # 0.7 to 1.2 times the factor
    assert 0.6 * 2**0.5 < sigma.min() <= sigma.max() < 1.25 * 2**0.5
    assert sigma.max() > 1.25  # more than a factor of 1 allows


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch.optim.Muon came with torch 2.9")
@pytest.mark.parametrize("scale", ["original", "match_rms_adamw"])
def test_matrices_take_the_steps_of_torch(scale):
    """torch iterates in bfloat16: 8 bits."""
    weight, gradients = torch.randn(12, 6), [torch.randn(12, 6) for _ in range(3)]
    parameter = nn.Parameter(weight.clone())
    optimizer = torch.optim.Muon([parameter], lr=0.02, weight_decay=0.1, adjust_lr_fn=scale)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    ours = stepped(weight, gradients, lr=0.02, weight_decay=0.1, scale=scale)
    moved = (parameter.detach() - weight).norm()
    assert (ours - parameter.detach()).norm() < 0.05 * moved


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_the_rest_takes_the_steps_of_torchs_adamw(decay):
    weight, gradients = torch.randn(5), [torch.randn(5) for _ in range(4)]
    parameter = nn.Parameter(weight.clone())
    optimizer = torch.optim.AdamW([parameter], lr=0.003, weight_decay=decay)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    ours = stepped(weight, gradients, use_muon=False, lr=0.03, weight_decay=decay)
    torch.testing.assert_close(ours, parameter.detach())


def test_huge_and_tiny_and_no_gradients():
    weight = torch.zeros(4, 4)
    for size in (1e-30, 1e30):
        step = stepped(weight, [size * torch.eye(4)], lr=1.0)
        assert 0.6 < -step[0, 0] < 1.3
    assert stepped(weight, [torch.zeros(4, 4)]).abs().max() == 0
    parameter = nn.Parameter(torch.ones(2, 2))
    Muon([{"params": [parameter], "use_muon": True}]).step()  # no gradient: it stays
    assert torch.equal(parameter, torch.ones(2, 2))


def test_hidden_matrices_of_known_networks():
    resnet = HiddenMatrices().select(torchvision.models.resnet18())
    assert "conv1.weight" not in resnet and "fc.weight" not in resnet
    assert {"layer1.0.conv1.weight", "layer2.0.downsample.0.weight"} <= set(resnet.names)
    assert len(resnet) == 19  # 20 convolutions but the first
    vit = HiddenMatrices().select(torchvision.models.vit_b_32())
    assert not {"conv_proj.weight", "heads.head.weight", "encoder.pos_embedding", "class_token"} & set(vit.names)
    assert "encoder.layers.encoder_layer_0.self_attention.in_proj_weight" in vit
    assert len(vit) == 12 * 4


def test_a_hugging_face_gpt():
    """The head is tied to the embedding, and weights are stored transposed: the scale is that of (out, in)."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=2, n_head=2)
    gpt = transformers.GPT2LMHeadModel(config)
    taken = HiddenMatrices().select(gpt)
    assert all("wte" not in name and "wpe" not in name and "lm_head" not in name for name in taken.names)
    assert "transformer.h.1.attn.c_attn.weight" in taken
    optimizer = Muon(muon_groups(gpt), lr=1.0)
    assert [(group["use_muon"], group["transposed"]) for group in optimizer.param_groups] == [
        (True, True),
        (False, False),
    ]
    weight = gpt.transformer.h[1].attn.c_attn.weight  # (8, 24), so 24 outputs
    before, weight.grad = weight.detach().clone(), torch.randn(8, 24)
    optimizer.step()
    expected = reference.muon(before.T, [weight.grad.T], lr=1.0)
    torch.testing.assert_close(weight.detach().T.double(), expected, rtol=1e-3, atol=1e-3)


def test_the_selection_prints_and_narrows():
    module = PlainModule()
    table = str(HiddenMatrices().select(module))
    assert "net.0.weight  8×6    first layer" in table
    assert "net.5.weight  3×8    last layer" in table
    with pytest.raises(ValueError, match="selects no weight of PlainModule: of 3 Linear"):
        HiddenMatrices(exclude=["net.3"]).select(module)
    with pytest.raises(ValueError, match="'head', which matches no weight"):
        HiddenMatrices(exclude=["head"]).select(module)


class WithMuon(PlainModule):
    def configure_optimizers(self):
        return Muon(muon_groups(self), lr=0.1)


class WithAdamOfTheRatio(PlainModule):
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.1 * 0.1)


def built(kind):
    torch.manual_seed(0)
    return kind()


def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(tmp_path):
    build = lambda: [PlasticityCallback(OptimizerReset()), UseMuon()]  # noqa: E731
    save = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1, every_n_epochs=1, save_on_train_epoch_end=True)
    whole = fitted(*build(), save, module=built(WithMuon))
    for epoch in range(5):  # before, at and after the event
        module = built(WithMuon)
        assert_same_weights(fitted(*build(), module=module, ckpt_path=tmp_path / f"epoch={epoch}.ckpt"), whole)


def test_use_muon_begins_as_adam_and_continues_as_muon():
    adam = fitted(module=built(WithAdamOfTheRatio), max_epochs=2)
    assert_same_weights(fitted(UseMuon(), module=built(WithMuon), max_epochs=2), adam)
    assert any(
        not torch.equal(a, b)
        for a, b in zip(
            fitted(UseMuon(), module=built(WithMuon), max_epochs=3).parameters(),
            fitted(module=built(WithAdamOfTheRatio), max_epochs=3).parameters(),
            strict=True,
        )
    )


def test_from_the_event_on_the_steps_are_muons():
    """A run whose event is at the very first batch equals one without `UseMuon`."""
    from lightning_fire import AtNewData

    late = fitted(UseMuon(AtNewData(skip_first=False)), module=built(WithMuon))
    assert_same_weights(late, fitted(module=built(WithMuon)))


def test_use_muon_without_muon():
    with pytest.raises(MisconfigurationException, match=r"needs an optimizer lightning_fire.optim.Muon .* got Adam"):
        fitted(UseMuon())


def test_unit_resets_find_the_momenta():
    class Remembers(PlasticityCallback):
        def act(self, trainer, pl_module, clock):
            values = super().act(trainer, pl_module, clock)
            state = trainer.optimizers[0].state
            self.seen = [state[pl_module.net[i].weight]["momentum_buffer"].clone() for i in (3,)]
            return values

    callback = Remembers(ReDo(threshold=1e9), EveryNSteps(3))  # every unit
    fitted(callback, module=built(WithMuon), max_epochs=2)
    assert torch.equal(callback.seen[0], torch.zeros(8, 8))


def test_only_the_moments_of_hidden_matrices_are_dropped_at_the_event():
    class Remembers(UseMuon):
        def act(self, trainer, pl_module, clock):
            had = set(trainer.optimizers[0].state)
            values = super().act(trainer, pl_module, clock)
            self.dropped = had - set(trainer.optimizers[0].state)
            return values

    callback, module = Remembers(), built(WithMuon)
    fitted(callback, module=module)
    assert callback.dropped == {module.net[3].weight}
    assert callback.num_events == 1  # the data changes twice


def test_what_is_paused_is_not_part_of_a_checkpoint(tmp_path):
    save = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1, every_n_epochs=1, save_on_train_epoch_end=True)
    fitted(UseMuon(), save, module=built(WithMuon), max_epochs=3)
    module = built(WithMuon)
    fit = trainer(max_epochs=2)
    fit.fit(module, datamodule=GrowingData(), ckpt_path=tmp_path / "epoch=0.ckpt")
    assert not any(group["paused"] for group in fit.optimizers[0].param_groups)


def test_transposed_convolutions():
    net = nn.Sequential(
        nn.Linear(2, 2), nn.ConvTranspose2d(6, 4, 3), nn.ConvTranspose2d(6, 4, 3, groups=2), nn.Linear(2, 2)
    )
    optimizer = Muon(muon_groups(net), lr=1.0)
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 7]  # in groups: by AdamW
    weight = net[1].weight  # (6, 4, 3, 3), so 4 outputs
    before, weight.grad = weight.detach().clone(), torch.randn(6, 4, 3, 3)
    optimizer.step()
    expected = reference.muon(before.transpose(0, 1), [weight.grad.transpose(0, 1)], lr=1.0)
    torch.testing.assert_close(weight.detach().transpose(0, 1).double(), expected, rtol=1e-3, atol=1e-3)


def test_embeddings_and_parametrised_layers_can_be_the_first():
    net = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 5))
    assert HiddenMatrices().select(net).names == ["1.weight", "2.weight"]
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    net = nn.Sequential(normed, nn.Linear(4, 4), nn.Linear(4, 5))
    assert HiddenMatrices().select(net).names == ["1.weight"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1}, "`lr` must be at least 0, got -1"),
        ({"adamw_lr_ratio": -1}, "`adamw_lr_ratio` must be at least 0"),
        ({"momentum": 1.0}, r"`momentum` must be in \[0, 1\), got 1.0"),
        ({"betas": (0.9, 1.0)}, r"`betas\[1\]` must be in \[0, 1\), got 1.0"),
        ({"steps": 0}, "`steps` must be at least 1, got 0"),
        ({"scale": "other"}, "`scale` must be 'original' or 'match_rms_adamw', got 'other'"),
    ],
)
def test_arguments_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        Muon(muon_groups(PlainModule()), **options)


def test_errors_of_groups():
    with pytest.raises(ValueError, match="needs `use_muon`"):
        Muon(PlainModule().parameters())
    with pytest.raises(ValueError, match=r"Muon steps matrices only, got a parameter of shape \(8,\)"):
        Muon([{"params": list(PlainModule().parameters()), "use_muon": True}])
    with pytest.raises(ValueError, match="`scale` must be"):
        muon_direction(torch.eye(2), scale="rms")


def test_hidden_matrices_are_no_weights_of_a_recurrent_layer():
    net = nn.ModuleDict({"first": nn.Linear(4, 6), "l": nn.LSTM(6, 6), "h": nn.Linear(6, 6), "last": nn.Linear(6, 2)})
    assert HiddenMatrices().select(net).names == ["h.weight"]
