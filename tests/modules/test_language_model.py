"""`LanguageModel` over phases: its loss, what it logs, its optimizer, and the callbacks that act on it."""

import json
import time
import types

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from processes import run as run_script
from small_training import assert_same_weights, trainer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torchmetrics.text import Perplexity
from two_texts import data

from lightning_fire import FIRECallback, Log, OptimizerReset, PlasticityCallback
from lightning_fire.modules import LanguageModel
from lightning_fire.nets import GPT

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning")


def module(net=None, **options):
    torch.manual_seed(0)
    net = net or GPT(vocab_size=16, block_size=8, depth=1, heads=2, dim=16)
    return LanguageModel(net, **{"learning_rate": 0.01, "min_learning_rate": 0.001, "warmup": [3, 0.25], **options})


def run(folder, *callbacks, texts=None, model=None, **options):
    texts, model = texts or data(), model or module()
    fit = trainer(*callbacks, folder=folder, max_epochs=texts.total_epochs, **options)
    fit.fit(model, datamodule=texts)
    log = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return model, {tag: [(event.step, event.value) for event in log.Scalars(tag)] for tag in log.Tags()["scalars"]}


def test_what_is_logged_and_where(tmp_path):
    _, logged = run(tmp_path, LearningRateMonitor("step"), PlasticityCallback(OptimizerReset()))
    assert [step for step, _ in logged["val/loss"]] == [5, 11, 17, 23]
    assert [step for step, _ in logged["val/loss/b"]] == [17, 23] and len(logged["val/loss/a"]) == 4
    assert [step for step, _ in logged["val/loss_at_new_data"]] == [12]
    assert {"val/loss_at_new_data/a", "val/loss_at_new_data/b", "train/loss_step", "train/loss"} < set(logged)
    for (_, whole), (_, a), (_, b), (_, perplexity) in zip(
        *(logged[f"val/{key}"][-2:] for key in ("loss", "loss/a", "loss/b", "perplexity")), strict=True
    ):
        assert whole == pytest.approx(0.25 * a + 0.75 * b, rel=1e-5)
        assert perplexity == pytest.approx(np.exp(whole), rel=1e-5)
    rates = [value for _, value in logged["lr-AdamW/pg1"]]
    rising = [0, 0.01 / 3, 0.02 / 3, 0.01]
    assert rates[:4] == pytest.approx(rising) and rates[11] == pytest.approx(0.01 - 0.009 * 8 / 9)
    assert rates[12:16] == pytest.approx(rising) and len(rates) == 24


def test_validation_loss_and_perplexity_are_those_of_torchmetrics(tmp_path):
    texts = data(phases=[{"a": 1.0}], epochs=1)
    model, logged = run(tmp_path, texts=texts)
    perplexity = Perplexity()
    model.eval()
    with torch.no_grad():
        for tokens, targets, _ in texts.val_dataloader():
            perplexity.update(model(tokens), targets)
    assert logged["val/perplexity"][0][1] == pytest.approx(float(perplexity.compute()), rel=1e-5)
    assert logged["val/loss"][0][1] == pytest.approx(float(perplexity.compute().log()), rel=1e-5)


def test_the_training_loss_is_the_mean_of_its_epoch(tmp_path):
    _, logged = run(tmp_path, texts=data(phases=[{"a": 1.0}]))
    steps = np.array([value for _, value in logged["train/loss_step"]])
    assert [value for _, value in logged["train/loss"]] == pytest.approx([steps[:6].mean(), steps[6:].mean()], rel=1e-5)


RANKS = """
import json
from small_training import trainer
from test_language_model import module
from two_texts import data
fit = trainer(max_epochs=2, devices=2, strategy="ddp", use_distributed_sampler=True)
found = fit.validate(module(), datamodule=data(phases=[{{"b": 3.0, "a": 1.0}}]), verbose=False)
with open(f"{folder}/rank{{fit.global_rank}}.json", "w") as file:
    json.dump(found[0], file)
"""


@pytest.mark.slow
def test_ranks_that_see_one_text_each_log_the_losses_of_both(tmp_path):
    run_script(RANKS.format(folder=tmp_path), tmp_path, ranks=2)
    (alone,) = trainer(max_epochs=2).validate(module(), data(phases=[{"b": 3.0, "a": 1.0}]), verbose=False)
    assert set(alone) == {"val/loss", "val/loss/a", "val/loss/b", "val/perplexity"}
    assert abs(alone["val/loss/a"] - alone["val/loss/b"]) > 1e-4
    for rank in (0, 1):
        assert json.loads((tmp_path / f"rank{rank}.json").read_text()) == pytest.approx(alone, rel=1e-5)


def test_decay_is_on_matrices_and_embeddings_alone():
    model = module(GPT(vocab_size=16, block_size=8, depth=1, heads=2, dim=16, bias=True), weight_decay=0.3)
    model.net.transformer.wpe.weight.requires_grad_(False)
    fit = trainer(max_epochs=4, limit_val_batches=0)
    fit.fit(model, datamodule=data())
    decayed, plain = fit.optimizers[0].param_groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.3, 0.0) and decayed["betas"] == (0.9, 0.95)
    names = {parameter: name for name, parameter in model.net.named_parameters()}
    assert {names[p] for p in plain["params"]} == {n for n in names.values() if "ln_" in n or n.endswith("bias")}
    assert len(decayed["params"]) + len(plain["params"]) == len(names) - 1  # without the frozen one


def test_one_step_is_that_of_a_plain_loop():
    """AdamW with clipping, accumulation over two micro-batches and a rate by hand."""
    texts = data(phases=[{"a": 1.0}], epochs=1, steps_per_epoch=2)
    model, other = module(warmup=0, decay="none"), module()
    trainer(max_epochs=1, accumulate_grad_batches=2, gradient_clip_val=0.1, limit_val_batches=0).fit(model, texts)
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in other.parameters() if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in other.parameters() if p.ndim == 1], "weight_decay": 0.0},
        ],
        lr=0.01,
        betas=(0.9, 0.95),
    )
    batches = data(phases=[{"a": 1.0}], epochs=1, steps_per_epoch=4).train_dataloader()
    for number, (tokens, targets) in enumerate(batches):
        loss = nn.functional.cross_entropy(other.net(tokens).transpose(1, 2), targets)
        (loss / 2).backward()
        if number % 2:
            nn.utils.clip_grad_norm_(other.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
    for (name, a), (_, b) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6), name


class Wrapped(nn.Module):
    """Returns its logits as Hugging Face's models do, and counts nothing."""

    def __init__(self, vocab_size=16, positions=8):
        super().__init__()
        self.embedding, self.head = nn.Embedding(vocab_size, 4), nn.Linear(4, vocab_size)
        self.config = types.SimpleNamespace(vocab_size=vocab_size, max_position_embeddings=positions)

    def forward(self, tokens):
        return types.SimpleNamespace(logits=self.head(self.embedding(tokens)))


def test_networks_of_others(tmp_path):
    model, logged = run(tmp_path, model=module(Wrapped()))
    assert len(logged["val/loss"]) == 4
    assert model.flops_per_token(8) == 6 * sum(p.numel() for p in model.net.parameters())


@pytest.mark.slow
def test_speed_leaves_validation_out(tmp_path, monkeypatch):
    """6 steps of 4·8 tokens; each batch is made to take 10 ms, each of 3 validation batches 500."""

    class Slow(LanguageModel):
        def training_step(self, batch, batch_idx):
            time.sleep(0.01)
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch, batch_idx):
            time.sleep(0.5)
            return super().validation_step(batch, batch_idx)

    torch.manual_seed(0)
    slow = Slow(GPT(16, 8, 1, 2, 16), warmup=0)
    monkeypatch.setattr("lightning_fire.modules.language_model.get_available_flops", lambda *_: 10**9)
    _, logged = run(tmp_path, texts=data(phases=[{"a": 1.0}]), model=slow)
    speeds = [value for _, value in logged["train/tokens_per_second"]]
    assert all(200 < speed < 3200 for speed in speeds)
    shares = [value for _, value in logged["train/mfu"]]
    assert shares == pytest.approx([speed * slow.net.flops_per_token(8) / 1e9 for speed in speeds], rel=1e-5)


def test_mfu_is_not_logged_on_a_device_of_unknown_speed(tmp_path):
    _, logged = run(tmp_path, texts=data(phases=[{"a": 1.0}], epochs=1))
    assert "train/mfu" not in logged and logged["train/tokens_per_second"][0][1] > 0


@pytest.mark.parametrize("where", ["phase 1", "event", "phase 2"])
def test_a_resumed_run_is_the_whole_one(tmp_path, where):
    def methods():
        return [PlasticityCallback(OptimizerReset()), FIRECallback(steps=5, log=Log(curvature=False))]

    step = {"phase 1": 8, "event": 12, "phase 2": 15}[where]
    save = ModelCheckpoint(tmp_path, "c", every_n_train_steps=step, save_top_k=1, save_on_train_epoch_end=False)
    whole, _ = run(tmp_path / "whole", *methods(), save)
    assert whole.trainer.global_step == 24 and whole.trainer.callbacks[1].num_events == 1
    torch.manual_seed(1)
    rest = module()
    fit = trainer(*methods(), max_epochs=4)
    fit.fit(rest, datamodule=data(), ckpt_path=tmp_path / "c.ckpt")
    assert_same_weights(rest, whole)


def test_compiled_networks_have_the_same_names(monkeypatch):
    plain = module()
    monkeypatch.setattr(nn.Module, "compile", lambda self: setattr(self, "_asked", True))
    compiled = module(compile=True)
    assert compiled.net._asked and list(compiled.state_dict()) == list(plain.state_dict())


@pytest.mark.parametrize("device, asked, found", [("cuda", True, ["high"]), ("cuda", False, []), ("cpu", True, [])])
def test_tf32_is_asked_for_on_gpus_alone(monkeypatch, device, asked, found):
    calls = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", calls.append)
    model = module(tf32=asked)
    strategy = types.SimpleNamespace(root_device=torch.device(device))
    model.trainer = types.SimpleNamespace(strategy=strategy, datamodule=None)
    model.setup("fit")
    assert calls == found


@pytest.mark.parametrize(
    "options, message",
    [
        ({"warmup": -1}, "`warmup` must be whole numbers of steps, or fractions"),
        ({"warmup": [100, 1.5]}, "`warmup` must be whole numbers of steps, or fractions"),
        ({"warmup": []}, "`warmup` must be whole numbers of steps, or fractions"),
        ({"learning_rate": 0}, "`learning_rate` must be positive"),
        ({"min_learning_rate": 0.02}, "`min_learning_rate` from 0 to it, got 0.01 and 0.02"),
        ({"weight_decay": -0.1}, "must be those of AdamW"),
        ({"decay": "exponential"}, "`decay` must be 'linear', 'cosine', 'none' or 'infinite', got 'exponential'"),
    ],
)
def test_wrong_arguments_are_an_error(options, message):
    with pytest.raises(ValueError, match=message):
        module(**options)


@pytest.mark.parametrize(
    "net, message",
    [
        (GPT(15, 8, 1, 2, 16), "the texts have 16 different tokens, but GPT has `vocab_size`=15"),
        (GPT(16, 7, 1, 2, 16), "the texts have 8 tokens in a block, but GPT has `block_size`=7"),
        (Wrapped(positions=7), "but Wrapped has `block_size`=7"),
    ],
)
def test_a_network_too_small_for_its_texts_is_an_error(net, message):
    with pytest.raises(ValueError, match=message):
        trainer(max_epochs=4).fit(module(net), datamodule=data())


@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed", "bf16-true", "64-true"])
def test_precisions_go_with_clipped_gradients(precision):
    """Lightning's mixed precision cannot clip for fused optimizers: they are, where no gradient is scaled."""
    options = {"precision": precision}
    if precision == "16-mixed":
        options = {"plugins": pl.plugins.MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))}
    norms = []

    class Watch(pl.Callback):
        def on_train_start(self, trainer, pl_module):
            self.optimizer = trainer.optimizers[0]
            self.optimizer.register_step_post_hook(lambda optimizer, *_: norms.append(norm_of(optimizer)))

    def norm_of(optimizer):
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        return float(torch.linalg.vector_norm(torch.stack([g.double().norm() for g in gradients])))

    watch = Watch()
    fit = trainer(watch, max_epochs=2, gradient_clip_val=1e-3, **options)
    fit.fit(module(), datamodule=data(epochs=1))
    assert fit.global_step == len(norms) == 12 and 0 < fit.callback_metrics["val/loss"] < 4
    assert max(norms) == pytest.approx(1e-3, rel=1e-2)
    assert watch.optimizer.defaults["fused"] is (precision != "16-mixed")


def test_a_phase_after_a_checkpoint_of_a_longer_one_begins_with_its_own_rate(tmp_path):
    """The checkpoint was written in the midst of a phase, where the rate is high; phase 2 warms up from 0."""
    texts = data(phases=[{"a": 1.0}], epochs=4)
    checkpoints = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
    trainer(checkpoints, max_epochs=4, enable_checkpointing=True).fit(module(), datamodule=texts)
    rates = LearningRateMonitor("step")
    model, logged = module(), data(epochs=[2, 2])
    fit = trainer(rates, PlasticityCallback(OptimizerReset()), folder=tmp_path / "log", max_epochs=4)
    fit.fit(model, datamodule=logged, ckpt_path=tmp_path / "epoch=1.ckpt")
    log = EventAccumulator(str(tmp_path / "log"), size_guidance={"scalars": 0}).Reload()
    assert [event.value for event in log.Scalars("lr-AdamW/pg1")][:4] == pytest.approx([0, 0.01 / 3, 0.02 / 3, 0.01])


def test_the_loss_at_new_data_is_that_of_all_its_validation_blocks(tmp_path):
    """Phase 1 has half as many of them."""
    logged_weights = {}

    class Keep(pl.Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            if trainer.current_epoch == 2:
                logged_weights.update({k: v.clone() for k, v in pl_module.state_dict().items()})

    _, logged = run(tmp_path, Keep())
    model, texts = module(), data()
    texts.trainer = types.SimpleNamespace(current_epoch=2, accumulate_grad_batches=1, world_size=1, is_global_zero=True)
    texts.trainer.strategy = types.SimpleNamespace(root_device=torch.device("cpu"))
    losses = {name: [] for name in "ab"}
    model.net.load_state_dict({k.removeprefix("net."): v for k, v in logged_weights.items() if k.startswith("net.")})
    with torch.no_grad():
        for tokens, targets, text in texts.val_dataloader():
            loss = nn.functional.cross_entropy(model.net(tokens).transpose(1, 2), targets, reduction="none")
            losses["ab"[int(text)]].append(loss.flatten())
    for name, found in losses.items():
        ((_, value),) = logged[f"val/loss_at_new_data/{name}"]
        assert value == pytest.approx(torch.cat(found).mean().item(), rel=1e-5)
