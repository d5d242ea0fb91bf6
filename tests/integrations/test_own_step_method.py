"""The step method of the page on own methods, in every adapter: a new training loads no state, a resumed one does."""

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from pages import ROOT, blocks_of
from small_training import PlainData, PlainModule, assert_same_weights, fitted, initial_state
from torch import nn

from lightning_fire import Loop, PlasticityCallback


@pytest.fixture
def page():
    """The names of the page's file `mine.py`."""
    blocks, names = blocks_of(ROOT / "docs" / "own_method.md", "python"), {"__name__": "mine"}
    exec("\n".join(block.code for block in blocks if "Method)" in block.code), names)
    return names


def lightning(folder, method):
    fitted(PlasticityCallback(method), data=PlainData(), max_epochs=1)


def hugging_face(folder, method):
    transformers = pytest.importorskip("transformers")
    from lightning_fire.integrations.huggingface import PlasticityCallback

    class OneLayer(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, inputs, labels):
            return {"loss": nn.functional.cross_entropy(self.layer(inputs), labels)}

    data = [{"inputs": torch.randn(6), "labels": n % 3} for n in range(8)]
    options = {"max_steps": 2, "save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": True}
    arguments = transformers.TrainingArguments(str(folder), **options)
    transformers.Trainer(OneLayer(), arguments, train_dataset=data, callbacks=[PlasticityCallback(method)]).train()


def stable_baselines3(folder, method):
    sb3 = pytest.importorskip("stable_baselines3")
    from lightning_fire.integrations.stable_baselines3 import PlasticityCallback

    agent = sb3.A2C("MlpPolicy", "CartPole-v1", n_steps=4, device="cpu", policy_kwargs={"net_arch": [4]})
    agent.learn(8, callback=PlasticityCallback(method))


def loop(folder, method):
    module = PlainModule()
    optimizer = module.configure_optimizers()
    attached = method.attach(module, Loop(optimizer))
    for batch in PlainData().train_dataloader():
        module.training_step(batch, 0).backward()
        attached.before_step(optimizer)
        optimizer.step()
        optimizer.zero_grad()
        attached.after_step()


@pytest.mark.parametrize("train", [lightning, hugging_face, stable_baselines3, loop])
def test_a_new_training_loads_no_state(page, train, tmp_path, monkeypatch):
    steps, loaded, after_step = [], [], page["Noise"].after_step
    monkeypatch.setattr(page["Noise"], "after_step", lambda self: steps.append(after_step(self)))
    monkeypatch.setattr(page["Noise"], "load_state_dict", lambda self, state: loaded.append(state))
    train(tmp_path, page["NoiseOnIdle"]())
    assert len(steps) >= 2 and loaded == []


def test_it_resumes_to_the_same_weights(page, tmp_path):
    def train(*callbacks, size=0.1, **options):
        module = PlainModule()
        module.load_state_dict(initial_state())
        with torch.no_grad():
            module.net[3].bias[:2] = -10.0  # units without gradients
        return fitted(
            PlasticityCallback(page["NoiseOnIdle"](size)), *callbacks, data=PlainData(), module=module, **options
        )

    whole = train(max_epochs=4)
    train(ModelCheckpoint(tmp_path, "half"), max_epochs=2)
    assert_same_weights(whole, train(max_epochs=4, ckpt_path=tmp_path / "half.ckpt"))
    assert not torch.equal(whole.net[3].weight[:2], train(size=0.0, max_epochs=4).net[3].weight[:2])
