"""The batched networks of the studies equal a Trainer, one network at a time."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger
from torch.nn.functional import cross_entropy

from lightning_fire import FIRECallback, FullReset, PlasticityCallback, Weights
from lightning_fire.data import PermutedInputs
from lightning_fire.modules import Classifier
from lightning_fire.nets import MLP
from lightning_fire.when import Clock, EveryNSteps, Schedule, WhenMetric
from studies.ensemble import Ensemble, Member, signs_of, train
from studies.methods import METHODS, fire, vanilla
from studies.streams import Stream, data_of

TASKS = Stream("", PermutedInputs(num_chunks=3, samples_per_task=60, epochs=2), 20, 3e-3)


def network(seed, normalization="none"):
    torch.manual_seed(seed)
    return MLP(196, 10, [12, 8], normalization)


class Kept(Logger):
    """Keeps what is logged under one key."""

    name = version = "kept"

    def __init__(self):
        super().__init__()
        self.values = []

    def log_metrics(self, metrics, step=None):
        self.values += [value for key, value in metrics.items() if key == "train/online_accuracy"]

    def log_hyperparams(self, *args, **kwargs):
        pass


def one_by_one(seed, callbacks, normalization="none", tasks=TASKS):
    data, logger = data_of(tasks, seed), Kept()
    module = Classifier(
        network(seed, normalization), 10, partial(torch.optim.Adam, lr=TASKS.rate, fused=True), warmup=0
    )
    trainer = Trainer(
        max_epochs=data.total_epochs,
        reload_dataloaders_every_n_epochs=1,
        logger=logger,
        callbacks=callbacks,
        accelerator="cpu",
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        num_sanity_val_steps=0,
        limit_val_batches=0,
    )
    trainer.fit(module, datamodule=data)
    return module.net, logger.values


@pytest.mark.parametrize("normalization", ["none", "layer"])
def test_members_train_as_alone(normalization):
    callbacks = {
        "vanilla": lambda: [],
        "fire": lambda: [FIRECallback(where=Weights(preset="cnn"))],
        "full_reset": lambda: [PlasticityCallback(FullReset())],
    }
    runs = [(name, seed) for name in callbacks for seed in (3, 4)]
    members = [Member(network(seed, normalization), seed, METHODS[name], rate=TASKS.rate) for name, seed in runs]
    train(members, partial(data_of, TASKS))
    for member, (name, seed) in zip(members, runs, strict=True):
        alone, online = one_by_one(seed, callbacks[name](), normalization)
        assert member.online == pytest.approx(online, abs=0.02)  # one of 120 samples is 0.008
        for key, value in alone.state_dict().items():
            torch.testing.assert_close(member.network.state_dict()[key], value, rtol=0.02, atol=2e-3)


def test_drifting_tasks_and_events_within_an_epoch_are_those_of_a_trainer():
    tasks = TASKS._replace(protocol=replace(TASKS.protocol, drift=0.8))
    members = [Member(network(seed), seed, METHODS["full_reset"], EveryNSteps(7), TASKS.rate) for seed in (3, 4)]
    train(members, partial(data_of, tasks))
    for member in members:
        assert member.events == [2, 4]  # steps 7 and 14, of 3 an epoch
        alone, online = one_by_one(member.seed, [PlasticityCallback(FullReset(), when=EveryNSteps(7))], tasks=tasks)
        assert member.online == pytest.approx(online, abs=0.02)
        for key, value in alone.state_dict().items():
            torch.testing.assert_close(member.network.state_dict()[key], value, rtol=0.02, atol=2e-3)


def test_batch_normalization_trains_as_alone():
    """On inputs that vary: Adam turns the rounding of gradients that are 0, as of constant pixels, into whole steps."""
    alone = network(0, "batch")
    optimizer = torch.optim.Adam(alone.parameters(), lr=3e-3)
    members = [Member(network(seed, "batch"), seed, vanilla) for seed in range(2)]
    ensemble = Ensemble(members)
    for _ in range(20):
        x, y = torch.randn(2, 20, 1, 14, 14), torch.randint(10, (2, 20))
        ensemble.step(x, y)
        optimizer.zero_grad()
        cross_entropy(alone(x[0]), y[0]).backward()
        optimizer.step()
    own = members[0].network.state_dict()
    for key, value in alone.state_dict().items():
        if key not in ("layers.1.bias", "layers.4.bias"):  # before BatchNorm their gradients are 0
            tolerance = 0.05 if key.endswith("running_mean") else 1e-4  # which takes in these biases
            torch.testing.assert_close(own[key], value, rtol=1e-3, atol=tolerance)


class Never(Schedule):
    def due(self, clock: Clock) -> bool:
        return False


def test_a_schedule_on_a_metric_sees_the_epoch_before_and_acts_once():
    """The accuracy is always below 1.1; after the event it would have to be above that first."""
    members = [
        Member(network(0), 0, fire, when=when)
        for when in (WhenMetric("accuracy", below=1.1), WhenMetric("accuracy", below=0.0), Never())
    ]
    train(members, partial(data_of, TASKS))
    assert [member.events for member in members] == [[1], [], []]


def test_signs_are_those_of_each_network():
    members = [Member(network(seed), seed, vanilla) for seed in range(2)]
    ensemble, x = Ensemble(members), torch.randn(2, 30, 1, 14, 14)
    members[1].network.layers[3].bias.data.fill_(-100.0)  # all units of the last hidden layer are dead
    signs = signs_of(ensemble, x, torch.tensor([0.25, 0.5]))
    assert [each["accuracy"] for each in signs] == [0.25, 0.5]
    assert signs[0]["dormant"] < 1 == signs[1]["dormant"]
    weights = [p.detach() for p in members[0].network.parameters() if p.ndim == 2]
    gram = [w.T @ w if w.shape[0] > w.shape[1] else w @ w.T for w in weights]
    scaled = [g * len(g) / g.trace() - torch.eye(len(g)) for g in gram]
    assert signs[0]["dfi"] == pytest.approx(float(sum(s.square().sum() / len(s) for s in scaled) / 3), rel=1e-4)
    features = members[0].network.layers(x[0]).detach()
    values = torch.linalg.svdvals(features)
    share = values / values.sum()
    share = share[share > 0]
    assert signs[0]["effective_rank"] == pytest.approx(float((-share * share.log()).sum().exp()), rel=1e-3)
