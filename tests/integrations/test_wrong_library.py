"""A callback of one library that is given to another one is an error that names what to use there."""

import copy
import inspect
import pickle

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel

transformers = pytest.importorskip("transformers")
sb3 = pytest.importorskip("stable_baselines3")

from lightning_fire import DASH, FIRE, FIRECallback, PlasticityCallback, PlasticityMonitor  # noqa: E402
from lightning_fire.integrations import huggingface, stable_baselines3  # noqa: E402


def in_lightning(callback):
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    Trainer(max_steps=1, callbacks=[callback], **options).fit(BoringModel())


def in_hugging_face(callback):
    transformers.Trainer(torch.nn.Linear(2, 2), callbacks=[callback])


def in_stable_baselines3(callback):
    sb3.DQN("MlpPolicy", "CartPole-v1", buffer_size=10, device="cpu").learn(1, callback)


OF_LIGHTNING = [PlasticityCallback(FIRE()), FIRECallback(), PlasticityMonitor()]
OF_HUGGING_FACE = [huggingface.PlasticityCallback(FIRE())]
OF_STABLE_BASELINES3 = [stable_baselines3.PlasticityCallback(FIRE())]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("train", "module", "callbacks"),
    [
        (in_lightning, "lightning_fire", [*OF_HUGGING_FACE, *OF_STABLE_BASELINES3, FIRE()]),
        (in_hugging_face, huggingface.__name__, [*OF_LIGHTNING, *OF_STABLE_BASELINES3, FIRE()]),
        (in_stable_baselines3, stable_baselines3.__name__, [*OF_LIGHTNING, *OF_HUGGING_FACE, FIRE()]),
    ],
)
def test_a_callback_of_another_library_is_named_with_its_own(train, module, callbacks, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # transformers makes a folder there
    for callback in callbacks:
        kind = type(callback).__name__
        with pytest.raises(
            TypeError, match=rf"{kind} is not a callback of .*: use {module}\.PlasticityCallback, which"
        ):
            train(callback)
        assert not hasattr(callback, "anything_else")


LIBRARIES = {
    "lightning_fire": PlasticityCallback,
    huggingface.__name__: huggingface.PlasticityCallback,
    stable_baselines3.__name__: stable_baselines3.PlasticityCallback,
}
TAKEN = {module: inspect.signature(kind).parameters.keys() for module, kind in LIBRARIES.items()}


SETS = list(map(set, TAKEN.values()))


@pytest.mark.parametrize("keyword", sorted(set.union(*SETS) - set.intersection(*SETS)))
def test_a_keyword_of_another_library_is_named_with_the_callbacks_that_take_it(keyword):
    taking = [f"{module}.PlasticityCallback" for module in TAKEN if keyword in TAKEN[module]]
    for module, kind in LIBRARIES.items():
        if keyword not in TAKEN[module]:
            with pytest.raises(TypeError, match=f"PlasticityCallback takes no `{keyword}`: ") as caught:
                kind(DASH(), **{keyword: None})
            assert [one for one in taking if f"{one}, of " in str(caught.value)] == taking
            assert str(caught.value).count("PlasticityCallback, of ") == len(taking)


def test_a_keyword_of_another_library_among_options_or_of_a_method():
    for kind in (FIRECallback, FIRE):
        with pytest.raises(
            TypeError, match=r"FIRE takes no `losses`: .*huggingface\.PlasticityCallback, of the Trainer"
        ):
            kind(losses=lambda model: ())


def test_a_subclass_may_take_what_it_likes():
    class Own(PlasticityCallback):
        def __init__(self, losses, **others):
            super().__init__(FIRE())
            self.losses, self.others = losses, others

    own = Own(losses=1, name="mine")
    assert (own.losses, own.others) == (1, {"name": "mine"})
    for callback in (FIRE(steps=3), huggingface.PlasticityCallback(FIRE(), name="mine")):
        assert type(pickle.loads(pickle.dumps(copy.deepcopy(callback)))) is type(callback)
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        PlasticityCallback(FIRE(), nonsense=1)
