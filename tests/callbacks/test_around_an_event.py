"""Events in trainings with fine-tuning, quantized parts, weight decay, and all at once."""

import pytest
import torch
from lightning.pytorch import callbacks
from lightning.pytorch.callbacks import BackboneFinetuning, EarlyStopping, ModelCheckpoint
from small_training import GrowingData, PlainModule, fitted, snapshots_of
from torch import nn

from lightning_fire import AtNewData, FIRECallback, RestartSchedulers
from lightning_fire.functional import fire
from lightning_fire.when import EveryNEpochs


class FineTuned(PlainModule):
    """A backbone of two layers and a head."""

    def __init__(self):
        super().__init__()
        self.backbone, self.head = self.net[:3], self.net[3:]

    def configure_optimizers(self):
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=1e-2)


def test_a_frozen_backbone_is_left_alone_until_it_is_trained():
    method = snapshots_of(FIRECallback)(EveryNEpochs(2))
    torch.manual_seed(0)
    unfreeze = BackboneFinetuning(unfreeze_backbone_at_epoch=3, lambda_func=lambda epoch: 1.0, train_bn=False)
    fitted(method, unfreeze, module=FineTuned(), data=GrowingData((6,)))
    for (before, after, _), trained in zip(method.seen, (False, True), strict=True):
        changed = {name for name in after if name.startswith("net") and not torch.equal(before[name], after[name])}
        assert changed == {"net.3.weight", "net.5.weight"} | ({"net.0.weight"} if trained else set())


def test_integer_parameters_are_left_alone():
    module = PlainModule()
    module.packed = nn.Parameter(torch.zeros(8, 8, dtype=torch.int8), requires_grad=False)
    fitted(FIRECallback(), module=module)
    assert not module.packed.any()


@pytest.mark.skipif(not hasattr(callbacks, "EMAWeightAveraging"), reason="came with Lightning 2.6")
def test_all_at_once(tmp_path):
    """Weight decay, one-cycle rates, an average, early stopping, best checkpoints, accumulation and bfloat16."""

    class Own(PlainModule):
        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), weight_decay=0.1)
            steps = 2 * self.trainer.estimated_stepping_batches // self.trainer.max_epochs
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

        def on_train_epoch_end(self):
            self.log("loss", [0.1, 0.9, 0.8, 0.7, 0.6, 0.5][self.current_epoch])

    method = snapshots_of(FIRECallback)()
    best = ModelCheckpoint(tmp_path, "{epoch}", monitor="loss", save_on_train_epoch_end=True)
    torch.manual_seed(0)
    module = fitted(
        method,
        RestartSchedulers(),
        callbacks.EMAWeightAveraging(decay=0.5),
        EarlyStopping("loss", patience=2),
        best,
        module=Own(),
        accumulate_grad_batches=2,
        precision="bf16-mixed",
    )
    assert module.trainer.current_epoch == 6
    assert module.trainer.global_step == 2 * 1 + 2 * 2 + 2 * 3
    assert best.best_model_path == str(tmp_path / "epoch=5.ckpt")
    assert len(method.seen) == 2
    for before, after, _ in method.seen:
        assert torch.equal(after["net.3.weight"], fire(before["net.3.weight"]))
    last = method.seen[-1][1]["net.3.weight"]
    assert torch.dist(module.net[3].weight, last) < torch.dist(method.seen[-1][0]["net.3.weight"], last)


class WarmsUp(PlainModule):
    """Its learning rate begins at 0 and rises at each step."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(step / 4, 1.0))
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def test_a_learning_rate_that_rises_after_an_event_is_no_reason_for_a_warning():
    method = FIRECallback(AtNewData(skip_first=False))
    fitted(method, module=WarmsUp(), data=GrowingData((2, 2)))  # warnings are errors
    assert method.num_events == 2


@pytest.mark.filterwarnings("ignore:.*returned `None`, this fit will run with no optimizer")
@pytest.mark.filterwarnings("ignore:.*finds no optimizer of")
def test_a_module_that_gives_lightning_no_optimizer_is_not_said_to_have_a_low_learning_rate():
    class Alone(PlainModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization, self.own = False, torch.optim.SGD(self.parameters(), lr=0.1)

        def training_step(self, batch, batch_idx):
            self.own.zero_grad()
            super().training_step(batch, batch_idx).backward()
            self.own.step()

        def configure_optimizers(self):
            return None

    method = FIRECallback(EveryNEpochs(1))
    fitted(method, module=Alone(), data=GrowingData((2, 2)))
    assert method.num_events >= 2
