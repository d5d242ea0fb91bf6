"""Every method in the Trainer of Hugging Face: a small network, and a small GPT-2 on the bytes of a text."""

import contextlib
import copy
import logging
import os
import pickle
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from methods_table import KEYS, made
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, IterableDataset

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from lightning_fire import (  # noqa: E402
    AtEpochs,
    AtFraction,
    AtNewData,
    EveryNEpochs,
    EveryNSteps,
    Schedule,
    Weights,
    WhenMetric,
)
from lightning_fire.integrations.huggingface import MeasurePlasticity, PlasticityCallback  # noqa: E402
from lightning_fire.methods import (  # noqa: E402
    DASH,
    FIRE,
    METHODS,
    Attached,
    Change,
    ContinualBackprop,
    EventMethod,
    FullReset,
    L2Init,
    Loop,
    ReDo,
    Report,
    ShrinkAndPerturb,
    StepMethod,
    WeightClipping,
    fire_,
)

TEXT = (" ".join(f"{n} times {n} is {n * n}," for n in range(40))).encode()
STEPS = 6  # 3 an epoch


def blocks(start=0):
    ids = torch.tensor(list(TEXT[start : start + 192])).view(12, 16)
    return [{"input_ids": block, "labels": block} for block in ids]


def gpt2():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=128, n_positions=16, n_embd=16, n_layer=1, n_head=2, attn_pdrop=0, resid_pdrop=0, embd_pdrop=0
    )
    return transformers.GPT2LMHeadModel(config)


class Net(nn.Module):
    """A network with statistics and randomness, which looking at it must not change."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Embedding(128, 8), nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 16)
        )
        self.norm, self.head = nn.BatchNorm1d(16), nn.Linear(16, 128)

    def forward(self, input_ids, labels=None):
        logits = self.head(torch.relu(self.norm(self.body(input_ids).flatten(0, 1))))
        return {"loss": nn.functional.cross_entropy(logits, labels.flatten()), "logits": logits}


def net():
    torch.manual_seed(0)
    model = Net()
    with torch.no_grad():
        model.body[2].bias[:4] = -10.0  # units that are silent
    return model


def trainer(folder, *callbacks, model=None, data=None, kind=None, **options):
    options = {"max_steps": STEPS, "save_strategy": "no", "logging_steps": 1, "learning_rate": 1e-2, **options}
    arguments = transformers.TrainingArguments(
        str(folder), report_to="none", disable_tqdm=True, use_cpu=True, **{"per_device_train_batch_size": 4, **options}
    )
    return (kind or transformers.Trainer)(
        model or gpt2(), arguments, train_dataset=data or blocks(), callbacks=list(callbacks)
    )


def watched(callback):
    """Record the model before and after each event, and the names with optimizer state that remain."""
    seen, act = [], callback._act

    def watch(*args, **options):
        model = callback._network
        before = copy.deepcopy(model)
        values = act(*args, **options)
        states = {parameter for each in callback._loop.optimizers for parameter, state in each.state.items() if state}
        kept = {name for name, parameter in model.named_parameters() if parameter in states}
        seen.append((before, copy.deepcopy(model), kept))
        return values

    callback._act = watch
    return seen


def equal(one, other):
    one, other = one.state_dict(), other.state_dict()
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def logged(training, key):
    return [entry for entry in training.state.log_history if key in entry]


def events(training):
    return [entry["step"] for entry in logged(training, "fire/sfe")]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    training = trainer(tmp_path_factory.mktemp("plain"), model=net())
    training.train()
    return training.model


@pytest.mark.parametrize("kind", METHODS, ids=lambda kind: kind.__name__)
def test_every_method_acts_logs_and_resumes_to_the_same_weights(kind, tmp_path, undisturbed):
    def callback():
        return PlasticityCallback(made(kind, "head"), EveryNSteps(2) if issubclass(kind, EventMethod) else None)

    saving = {"save_strategy": "steps", "save_steps": 3}
    whole = trainer(tmp_path, callback(), model=net(), **saving)
    whole.train()
    assert not equal(whole.model, undisturbed)
    if key := KEYS[kind]:
        steps = [2, 4] if issubclass(kind, EventMethod) else [1, 2, 3, 4, 5, 6]
        assert [entry["step"] for entry in logged(whole, key)] == steps
    resumed = trainer(tmp_path / "resumed", callback(), model=net())
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert equal(resumed.model, whole.model)
    if key:
        assert logged(resumed, key) == logged(whole, key) or "seconds" in str(logged(whole, key))


def test_measuring_changes_nothing(tmp_path, undisturbed):
    training = trainer(tmp_path, PlasticityCallback(MeasurePlasticity()), model=net())
    training.train()
    assert equal(training.model, undisturbed)
    (*_, last) = logged(training, "plasticity/dormant_fraction")
    assert last["step"] == STEPS and 4 / 32 <= last["plasticity/dormant_fraction"] < 0.5
    assert 1 <= last["plasticity/stable_rank"] <= last["plasticity/srank"] <= 16
    assert last["plasticity/readiness"] >= 0 < last["plasticity/critical_sharpness"]
    model = training.model
    norm = sum(view.read().square().sum() for view in Weights().select(model)) ** 0.5
    assert last["plasticity/weight_norm"] == pytest.approx(float(norm)) and "plasticity.raw/dfi" in last


def test_gradients_on_data_leave_no_trace(tmp_path, undisturbed):
    """DASH that shrinks nothing: training draws the same batches and dropout, and BatchNorm sees no others."""
    method = DASH(minimum=1.0, num_batches=2, optimizer_state="keep")
    training = trainer(tmp_path, PlasticityCallback(method, EveryNSteps(2)), model=net())
    training.train()
    assert len(logged(training, "dash/batches")) == 2 and equal(training.model, undisturbed)


@pytest.mark.parametrize(
    ("when", "steps"),
    [
        (AtFraction(0.5), [3]),
        ([EveryNSteps(2), AtEpochs([1])], [2, 3, 4]),
        (AtNewData(skip_first=False), [0]),
        (None, []),
    ],
)
def test_it_acts_when_the_schedule_is_due(tmp_path, when, steps):
    training = trainer(tmp_path, PlasticityCallback(FIRE(), when))
    training.train()
    assert events(training) == steps


def test_an_event_is_that_of_a_plain_loop_and_nothing_else(tmp_path):
    callback = PlasticityCallback(FIRE(), AtFraction(0.5))
    seen = watched(callback)
    trainer(tmp_path, callback).train()
    ((before, after, kept),) = seen
    expected = copy.deepcopy(before)
    selected = {view.parameter for view in Weights().select(expected)}
    names = {name for name, parameter in expected.named_parameters() if parameter in selected}
    FIRE()(expected, Loop())
    assert equal(after, expected)
    assert kept == {name for name, _ in expected.named_parameters()} - names  # the state inside accelerate's wrapper


def test_a_penalty_is_that_of_a_plain_loop(tmp_path):
    """One step of SGD on the gradient of the loss and of λ‖θ − θ₀‖², from weights that are not the initial ones."""
    callback, model = PlasticityCallback(L2Init(0.1)), net()
    options = {"optim": "sgd", "max_grad_norm": 0.0, "lr_scheduler_type": "constant", "learning_rate": 0.5}
    training = trainer(tmp_path, callback, model=model, max_steps=1, **options)
    twin, start = trainer(tmp_path, model=net(), max_steps=1, **options), net()
    with torch.no_grad():
        for parameter, other in zip(model.parameters(), twin.model.parameters(), strict=True):
            other.copy_(parameter.add_(0.01))
    for each in (training, twin):
        torch.manual_seed(0)  # of dropout
        each.train()
    for new, plain, first in zip(model.parameters(), twin.model.parameters(), start.parameters(), strict=True):
        pull = 0.5 * 0.1 * 2 * 0.01
        assert torch.allclose(new, plain - pull * torch.ones_like(first), atol=1e-6)


def test_start_chunk_waits_for_a_batch_of_its_data(tmp_path):
    callback, model, found = PlasticityCallback(FIRE(), EveryNSteps(3), start_chunk=1), gpt2(), []
    pulls = PlasticityCallback(L2Init(0.1), start_chunk=1)
    for start in (0, 200):
        training = trainer(tmp_path, callback, pulls, model=model, data=blocks(start))
        training.train()
        found.append((events(training), len(logged(training, "l2_init/penalty"))))
    assert found == [([], 0), ([3], STEPS)]


class SmallMemory(transformers.Trainer):
    """Runs out of memory from some micro-batch on, until the batches are small enough."""

    def __init__(self, *args, after, **options):
        super().__init__(*args, **options)
        self.after, self.num_batches = after, 0

    def training_step(self, model, inputs, *args, **options):
        self.num_batches += 1
        if len(inputs["input_ids"]) > 2 and self.num_batches > self.after:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return super().training_step(model, inputs, *args, **options)


@pytest.mark.parametrize(
    ("when", "after", "steps"),
    [
        (None, 0, []),
        (AtNewData(skip_first=False), 0, [0]),
        (AtNewData(skip_first=False), 2, [0]),
        ([AtNewData(skip_first=False), EveryNSteps(2)], 2, [0, 2, 2]),  # its third step comes twice
        ([AtEpochs([0])], 0, [0]),
        ([AtEpochs([0])], 2, [0]),
        (EveryNSteps(2), 2, [2, 2]),
        (AtFraction(0.5), 2, [2, 2]),
    ],
)
def test_a_restart_after_out_of_memory_counts_steps_from_0_and_is_not_new_data(tmp_path, when, after, steps):
    found = []
    callback = PlasticityCallback(FIRE(), when, log=lambda values: found.append(training.state.global_step))
    kind = partial(SmallMemory, after=after)
    training = trainer(tmp_path, callback, kind=kind, auto_find_batch_size=True, max_steps=3)
    training.train()
    assert found == steps


class Interrupt(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **options):
        raise KeyboardInterrupt


class Refuse(transformers.TrainerCallback):
    def on_train_begin(self, args, state, control, **options):
        raise KeyboardInterrupt


def test_an_interrupted_training_that_begins_again_is_not_on_new_data(tmp_path, caplog):
    model, callback = gpt2(), PlasticityCallback(FIRE(), AtNewData(skip_first=False))
    with contextlib.suppress(KeyboardInterrupt):
        trainer(tmp_path, callback, Interrupt(), model=model).train()
    with caplog.at_level(logging.INFO):
        training = trainer(tmp_path, callback, model=model)
        training.train()
    assert not events(training) and "was interrupted: the data of this one counts as the same" in caplog.text


def test_an_interrupted_training_leaves_no_hooks_to_a_later_one(tmp_path):
    """The Trainer keeps its optimizer; the user's own hooks stay on it."""
    for method in (WeightClipping(0.5), FIRE()):
        callback = PlasticityCallback(method)
        training = trainer(tmp_path, callback, Interrupt(), model=net())
        with contextlib.suppress(KeyboardInterrupt):
            training.train()
        key = f"lightning_fire.{method.name}"
        assert key in training.optimizer.state_dict()["param_groups"][0]  # a checkpoint may be saved by hand
        training.remove_callback(callback)
        training.remove_callback(Interrupt)
        torch_optimizer = training.optimizer.optimizer
        torch_optimizer.register_step_pre_hook(lambda *_: None)  # after those of the callback
        with torch.no_grad():
            training.model.head.weight.fill_(5.0)
        training.train()
        assert training.model.head.weight.min() > 4
        assert key not in training.optimizer.state_dict()["param_groups"][0]
        assert not torch_optimizer._optimizer_step_post_hooks


def test_a_training_that_another_callback_refuses_leaves_no_hooks(tmp_path):
    clips, never = PlasticityCallback(WeightClipping(0.5)), PlasticityCallback(FIRE(), AtEpochs([50]))
    training = trainer(tmp_path, clips, never, model=net())
    with pytest.raises(ValueError, match="can never act"):
        training.train()
    for callback in (clips, never):
        training.remove_callback(callback)
    with torch.no_grad():
        training.model.head.weight.fill_(5.0)
    training.train()
    assert training.model.head.weight.min() > 4
    optimizer = training.optimizer.optimizer
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks


def test_a_method_acts_once_in_a_training_after_an_interrupted_one(tmp_path):
    """With the same callback or another one, the weights are those of a training that was not interrupted."""
    found = []
    for interrupted, again in ((False, False), (True, True), (True, False)):
        callback = PlasticityCallback(L2Init(0.1))
        training = trainer(tmp_path, callback, model=gpt2(), optim="sgd")
        if interrupted:
            training.add_callback(Refuse())
            with contextlib.suppress(KeyboardInterrupt):
                training.train()
            training.remove_callback(Refuse)
            if not again:
                training.remove_callback(callback)
                training.add_callback(PlasticityCallback(L2Init(0.1)))
        training.train()
        found.append(training.model)
    assert equal(found[0], found[1]) and equal(found[0], found[2])


def test_a_trial_of_a_search_begins_with_a_new_network(tmp_path):
    """The second network is new, so that nothing is to be done, and initial values are its own."""
    found, config = [], gpt2().config
    for method, when in ((FIRE(), None), (FullReset(), EveryNSteps(2))):
        plasticity = PlasticityCallback(method, when, log=found.append)
        arguments = trainer(tmp_path, max_steps=3, lr_scheduler_type="constant", learning_rate=1e-9).args
        training = transformers.Trainer(
            args=arguments,
            train_dataset=blocks(),
            callbacks=[plasticity],
            model_init=lambda: transformers.GPT2LMHeadModel(config),
        )
        for seed in range(2):
            training.args.seed = seed
            training.train(trial={})
    assert [values["full_reset/event"] for values in found] == [1, 1]
    assert max(values["full_reset/sfe"] for values in found) < 1e-6  # it has hardly moved from its own start


def test_the_first_data_is_said_to_be_the_first(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        trainer(tmp_path, PlasticityCallback(FIRE(), [AtNewData(), EveryNSteps(2)])).train()
        assert "this data is the first" not in caplog.text
        trainer(tmp_path, PlasticityCallback(FIRE())).train()
    assert caplog.text.count("is due; this data is the first, and data is new in a later train()") == 1
    assert "give when=AtNewData(skip_first=False)" in caplog.text


def test_the_line_of_an_event_says_how_many_matrices_are_taken(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        trainer(tmp_path, PlasticityCallback(FIRE(), AtNewData(skip_first=False))).train()
    assert "fire acted at epoch 0, step 0 (" in caplog.text and "; 7 of 7 weight matrices, preset gpt)" in caplog.text


def test_a_method_that_acts_at_each_step_says_on_how_many_units(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        trainer(tmp_path, PlasticityCallback(ContinualBackprop()), model=net()).train()
    assert "continual_backprop acts on 32 hidden units in 2 layers, at each step." in caplog.text


def test_an_event_that_changes_nothing_is_named(tmp_path, caplog):
    """As in a process that starts from loaded weights: these are its initial values."""
    for fresh_seed, count in ((None, 1), (0, 0)):
        caplog.clear()
        callback = PlasticityCallback(FullReset(fresh_seed=fresh_seed), AtNewData(skip_first=False))
        with caplog.at_level(logging.INFO):
            trainer(tmp_path, callback, model=net()).train()
        nothing = "full_reset at epoch 0, step 0: FullReset has changed no weight: they are the initial values"
        assert caplog.text.count(nothing) == count
        assert caplog.text.count("full_reset acted at epoch 0, step 0") == 1 - count


def test_a_checkpoint_without_its_state_is_named(tmp_path, caplog):
    trainer(tmp_path, PlasticityCallback(FIRE()), save_strategy="steps", save_steps=3, save_only_model=True).train()
    with caplog.at_level(logging.INFO):
        training = trainer(tmp_path / "next", PlasticityCallback(FIRE(), EveryNSteps(4)))
        training.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert events(training) == [4]
    assert "the checkpoint of step 3 has no state of it" in caplog.text


def test_copies_keep_the_state_of_a_callback_without_its_training(tmp_path):
    class Copies(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **options):
            pickle.dumps(callback)

    model, callback = gpt2(), PlasticityCallback(FIRE())
    trainer(tmp_path, callback, Copies(), model=model).train()
    copied = pickle.loads(pickle.dumps(copy.deepcopy(callback)))
    training = trainer(tmp_path, copied, model=model, data=blocks(200))
    training.train()
    assert events(training) == [0] and copied._event == 2 and callback._event == 1


class Evaluating(transformers.Trainer):
    """Evaluates to a loss that grows."""

    def evaluate(self, *args, **options):
        metrics = {"eval_loss": float(self.state.global_step)}
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


def test_the_best_metric_of_before_an_event_is_forgotten(tmp_path):
    """Otherwise training would stop at step 4, and load the weights of before the event."""
    often = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    loads = {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "greater_is_better": False}
    callback = PlasticityCallback(FIRE(), EveryNSteps(3))
    patience = transformers.EarlyStoppingCallback(3)
    kind = partial(Evaluating, eval_dataset=blocks())
    training = trainer(tmp_path, callback, patience, kind=kind, max_steps=9, **often, **loads)
    training.train()
    assert events(training) == [3, 6]
    assert training.state.global_step == 9 and training.state.best_model_checkpoint.endswith("checkpoint-7")


class Unsized:
    """Batches of a data set with a length, as a sampler without one."""

    def __iter__(self):
        yield from ([4 * i + j for j in range(4)] for i in range(3))


class OwnLoader(transformers.Trainer):
    def get_train_dataloader(self):
        return DataLoader(self.train_dataset, batch_sampler=Unsized(), collate_fn=self.data_collator)


class Sized(IterableDataset):
    """Data that is read in order, with a length."""

    def __len__(self):
        return 12

    def __iter__(self):
        yield from blocks()


def test_epochs_are_known_where_the_loader_has_a_length(tmp_path):
    with pytest.raises(ValueError, match="epochs of data without a length are not known"):
        trainer(tmp_path, PlasticityCallback(FIRE(), EveryNEpochs(1)), kind=OwnLoader).train()
    training = trainer(tmp_path, PlasticityCallback(FIRE(), EveryNEpochs(1)), data=Sized())
    training.train()
    assert events(training) == [3]


class Opened:
    """Samples of a file that each process opens when it first reads one, as many data sets do."""

    def __init__(self):
        self.opened_by = None

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if self.opened_by is None:
            self.opened_by = os.getpid()
        assert self.opened_by == os.getpid()
        return blocks()[index]


@pytest.mark.slow
def test_data_that_workers_read_is_not_read_in_the_main_process(tmp_path):
    data = Opened()
    training = trainer(tmp_path, PlasticityCallback(DASH(), EveryNSteps(2)), data=data, dataloader_num_workers=1)
    training.train()
    assert len(logged(training, "dash/batches")) == 2 and data.opened_by is None


class OfAnotherLibrary:
    """Plain gradient descent with a momentum in `state`, but not an optimizer of torch."""

    def __init__(self, parameters):
        self.param_groups, self.state = [{"params": list(parameters), "lr": 1e-2}], {}

    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            self.state.setdefault(parameter, {})["momentum"] = parameter.grad.clone()
            parameter.data -= 1e-2 * parameter.grad

    def zero_grad(self, set_to_none=True):
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None


def test_an_optimizer_of_another_library_is_served(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    schedule = SimpleNamespace(step=lambda *_: None, get_last_lr=lambda: [1e-2])

    def training(method, when, model):
        callback, arguments = PlasticityCallback(method, when), trainer(tmp_path).args
        optimizers = OfAnotherLibrary(model.parameters()), schedule
        return callback, transformers.Trainer(
            model, arguments, train_dataset=blocks(), callbacks=[callback], optimizers=optimizers
        )

    callback, served = training(FIRE(), AtFraction(0.5), gpt2())
    seen = watched(callback)
    served.train()
    ((before, after, kept),) = seen
    fire_(before)
    assert equal(before, after) and 0 < len(kept) < len(list(after.parameters()))
    found = {}
    for method in (None, L2Init(0.1)):
        model = gpt2()
        callback, each = training(method or L2Init(0.0), None, model)
        each.train()
        found[method] = model
    assert not equal(*found.values())
    assert "checkpoints have no state of it, as OfAnotherLibrary is not an optimizer of torch" in caplog.text


@pytest.mark.parametrize(("with_callback", "expected"), [(True, [STEPS]), (False, [STEPS])])
def test_a_training_that_continues_a_finished_one_begins_new_data(tmp_path, with_callback, expected, caplog):
    """Also where the first one did not know the callback; from its middle, the same data continues, which is said."""
    saving = {"save_strategy": "steps", "save_steps": 3}
    first = [PlasticityCallback(FIRE(), AtNewData(skip_first=False))] if with_callback else []
    trainer(tmp_path, *first, **saving).train()
    for step, steps in ((STEPS, expected), (3, [0] if with_callback else [3])):
        callback = PlasticityCallback(FIRE(), AtNewData(skip_first=False))
        training = trainer(tmp_path / "next", callback, data=blocks(200), max_steps=9)
        with caplog.at_level(logging.INFO):
            training.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        assert events(training)[-1:] == steps
    assert ("had not ended" in caplog.text) is with_callback


class Stream(IterableDataset):
    def __iter__(self):
        yield from blocks()


def test_data_without_a_length_has_no_epochs_and_is_read_once(tmp_path):
    def of(method, when=None, losses=None):
        return trainer(tmp_path, PlasticityCallback(method, when, losses=losses), data=Stream())

    for when in (AtEpochs([1]), EveryNEpochs(1)):
        with pytest.raises(ValueError, match="epochs of data without a length are not known"):
            of(FIRE(), when).train()
    with pytest.raises(ValueError, match="DASH needs batches, and a stream of data may be readable only once"):
        of(DASH(), EveryNSteps(2)).train()

    def losses(model):
        return (model(**{name: value[None] for name, value in block.items()}).loss for block in blocks())

    training = of(DASH(num_batches=3), EveryNSteps(2), losses)
    training.train()
    assert [entry["dash/batches"] for entry in logged(training, "dash/batches")] == [3.0, 3.0]


def test_a_training_after_a_resumed_one_is_on_new_data(tmp_path):
    """In the process that resumes, the callback has not seen the start."""
    trainer(tmp_path, save_strategy="steps", save_steps=2, save_only_model=False).train()
    events = []
    callback, model = PlasticityCallback(FIRE(), log=events.append), gpt2()
    trainer(tmp_path / "resumed", callback, model=model).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert not events
    trainer(tmp_path / "next", callback, model=model, data=blocks(200)).train()
    assert len(events) == 1


def test_a_logger_gets_what_an_event_did(tmp_path):
    training = trainer(tmp_path)
    training.add_callback(PlasticityCallback(FIRE(), AtFraction(0.5), log=training.log, name="ours"))
    training.train()
    (entry,) = logged(training, "ours/sfe")
    assert entry["ours/dfi_normalized_after"] < entry["ours/dfi_normalized_before"]
    assert entry["step"] == 3 and entry["ours/event"] == 1


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")
def test_lora_factors_are_left_alone_and_a_merged_model_is_not(tmp_path):
    """Orthogonal factors would make an adapter, which is a small correction, as large as the model."""
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(gpt2(), peft.LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True))
    with pytest.raises(
        ValueError, match=r"low-rank factor of an adapter.* after merge_and_unload\(\) .*requires_grad_"
    ):
        trainer(tmp_path, PlasticityCallback(FIRE(), AtFraction(0.5)), model=model)
    merged = model.merge_and_unload()
    with pytest.raises(ValueError, match=r"Frozen weights are taken after model.requires_grad_\(\)"):
        fire_(merged)
    assert fire_(merged.requires_grad_())["dfi_normalized_after"] < 0.1


def test_unsupported_settings_are_an_error_when_it_is_made():
    with pytest.raises(ValueError, match="cannot be used here: only the steps of training are known"):
        PlasticityCallback(FIRE(), [AtEpochs([1]), WhenMetric("eval_loss", above=1.0)])
    with pytest.raises(TypeError, match="`when` must be a schedule"):
        PlasticityCallback(FIRE(), 3)
    with pytest.raises(TypeError, match="`method` must be a method such as FIRE"):
        PlasticityCallback(fire_)
    with pytest.raises(ValueError, match="`when` is for methods with events: L2Init acts at every step"):
        PlasticityCallback(L2Init(0.1), EveryNSteps(2))
    with pytest.raises(ValueError, match="`start_chunk` must be at least 0, got -1"):
        PlasticityCallback(FIRE(), start_chunk=-1)
    with pytest.raises(ValueError, match="`name` must not have a slash"):
        PlasticityCallback(FIRE(), name="a/b")


class Lossless(Net):
    def forward(self, input_ids, labels=None):
        return {"logits": super().forward(input_ids, input_ids)["logits"]}


class LossOfTheTrainer(transformers.Trainer):
    """As those of sentence-transformers and of preference optimization: the model takes no labels."""

    def compute_loss(self, model, inputs, return_outputs=False, **options):
        return nn.functional.cross_entropy(model(inputs["input_ids"])["logits"], inputs["labels"].flatten())


@pytest.mark.parametrize("method", [DASH(), ReDo()], ids=lambda method: method.name)
def test_batches_that_the_model_does_not_take_need_losses(method, tmp_path):
    class OfIds(Lossless):
        def forward(self, ids):
            return super().forward(ids, ids)  # labels are not used

    def training(**options):
        callback = PlasticityCallback(method, EveryNSteps(5), **options)
        return trainer(tmp_path, callback, model=OfIds(), kind=LossOfTheTrainer, remove_unused_columns=False)

    call = rf"PlasticityCallback\({type(method).__name__}\(…\), losses=lambda model: \(trainer"
    with pytest.raises(ValueError, match=f"OfIds cannot be called with a batch .*: give {call}"):
        training().train()
    batch = {key: torch.stack([block[key] for block in blocks()]) for key in ("input_ids", "labels")}
    own = training(losses=lambda model: (own.compute_loss(model, batch) for _ in range(8)))
    own.train()
    assert [entry["step"] for entry in logged(own, f"{method.name}/event")] == [5]


def test_what_is_missing_is_an_error_before_training(tmp_path):
    with pytest.raises(ValueError, match="nope"):
        trainer(tmp_path, PlasticityCallback(FIRE(where=Weights(include=["nope"])), AtFraction(0.5)))
    with pytest.raises(ValueError, match=r"EveryNSteps\(n=6\) can never act: training ends after 6 steps"):
        trainer(tmp_path, PlasticityCallback(FIRE(), EveryNSteps(6))).train()
    with pytest.raises(ValueError, match="two callbacks log as 'fire'"):
        trainer(tmp_path, *(PlasticityCallback(FIRE(), AtFraction(f)) for f in (0.3, 0.5))).train()
    with pytest.raises(ValueError, match="Lossless returns no loss of a batch"):
        trainer(tmp_path, PlasticityCallback(DASH(), EveryNSteps(5)), model=Lossless(), kind=LossOfTheTrainer).train()
    trainer(tmp_path, save_strategy="steps", save_steps=3).train()
    training = trainer(tmp_path / "next")
    training.add_callback(PlasticityCallback(FullReset(), EveryNSteps(5)))  # too late to see the new model
    late = partial(training.train, resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    with pytest.raises(ValueError, match="give the callback to the Trainer when it is made"):
        late()


@pytest.mark.parametrize(
    ("deepspeed", "version", "refused"), [(None, 1, True), ({}, None, False), ({"a": 1}, None, True), (None, 2, False)]
)
def test_weights_in_pieces_are_an_error(monkeypatch, deepspeed, version, refused):
    """No such training runs here: the plugin of accelerate is a stand-in."""
    from lightning_fire.integrations import huggingface

    plugin = None if version is None else SimpleNamespace(fsdp_version=version)
    monkeypatch.setattr(huggingface, "AcceleratorState", lambda: SimpleNamespace(fsdp_plugin=plugin))
    state = transformers.TrainerState(num_train_epochs=1, max_steps=9, train_batch_size=4)
    arguments = SimpleNamespace(deepspeed=deepspeed, process_index=0, world_size=1, auto_find_batch_size=False)
    model = gpt2()
    given = {"model": model, "optimizer": torch.optim.Adam(model.parameters()), "train_dataloader": None}
    with pytest.raises(ValueError, match="under DeepSpeed or FSDP1") if refused else contextlib.nullcontext():
        PlasticityCallback(FIRE()).on_train_begin(arguments, state, None, **given)


def test_a_given_average_begins_again_from_the_new_weights(tmp_path):
    model = net()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    callback = PlasticityCallback(FIRE(), EveryNSteps(3), averages=average)
    trainer(tmp_path, callback, model=model, max_steps=4, learning_rate=0.0, weight_decay=0.0).train()
    assert callback._event == 2
    assert all(map(torch.equal, average.module.parameters(), model.parameters()))
    assert pickle.loads(pickle.dumps(callback))._averages == []
    with pytest.raises(TypeError, match="`averages` must be averages of weights"):
        PlasticityCallback(FIRE(), averages=3)


class Notes(Schedule):
    """Due at given steps; keeps the clocks that it is asked with."""

    def __init__(self, *steps):
        self.steps, self._clocks = steps, []

    def due(self, clock):
        self._clocks.append(clock)
        return clock.step in self.steps


def test_the_clock_of_a_training_and_of_the_next(tmp_path):
    """Two epochs of three steps, on two data sets."""
    model, when = gpt2(), Notes()
    callback = PlasticityCallback(FIRE(), when)
    for chunk in range(2):
        trainer(tmp_path, callback, model=model, data=blocks(200 * chunk)).train()
        assert [clock.step for clock in when._clocks] == list(range(STEPS))
        assert [clock.epoch for clock in when._clocks] == [0, 0, 0, 1, 1, 1]
        assert [clock.epoch_start for clock in when._clocks] == [True, False, False, True, False, False]
        assert [clock.new_data for clock in when._clocks] == [True] + 5 * [False]
        assert {clock.chunk for clock in when._clocks} == {chunk}
        assert [clock.progress for clock in when._clocks] == [step / STEPS for step in range(STEPS)]
        assert [clock.progress_before for clock in when._clocks] == [(step - 1) / STEPS for step in range(STEPS)]
        when._clocks.clear()


def test_the_clock_of_a_resumed_training_is_in_the_middle_of_its_data(tmp_path):
    trainer(tmp_path, PlasticityCallback(FIRE(), Notes()), save_strategy="steps", save_steps=2).train()
    when = Notes()
    training = trainer(tmp_path / "resumed", PlasticityCallback(FIRE(), when))
    training.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert [(clock.step, clock.epoch, clock.new_data) for clock in when._clocks] == [
        (2, 0, False),
        (3, 1, False),
        (4, 1, False),
        (5, 1, False),
    ]
    assert [clock.epoch_start for clock in when._clocks] == [False, True, False, False]


def test_what_an_event_logs_is_the_report_of_a_plain_loop(tmp_path):
    """Of a method that uses initial values, at two events: each with its number, and once per step."""
    callback = PlasticityCallback(ShrinkAndPerturb(0.5), EveryNSteps(2), name="ours")
    model, seen = gpt2(), watched(callback)
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    training = trainer(tmp_path, callback, model=model)
    training.train()
    entries = logged(training, "ours/event")
    assert [(entry["step"], entry["ours/event"]) for entry in entries] == [(2, 1.0), (4, 2.0)]
    for number, (entry, (before, after, _)) in enumerate(zip(entries, seen, strict=True), 1):
        report = ShrinkAndPerturb(0.5)(before, Loop(initial=initial, event=number))
        assert equal(before, after)
        expected = {**report.keyed("ours", layers=False), "ours/event": float(number), "step": entry["step"]}
        assert {**entry, "ours/seconds": 0} == {**expected, "ours/seconds": 0}


def test_initial_values_are_those_of_the_first_training(tmp_path):
    """At new data a full reset returns to them, with the state of the optimizer new, and the events count on."""
    model, found = gpt2(), []
    callback = PlasticityCallback(FullReset(), log=found.append)
    start, seen = copy.deepcopy(model), watched(callback)
    for number in range(3):
        trainer(tmp_path, callback, model=model, data=blocks(100 * number), max_steps=2).train()
        assert not equal(model, start)
    assert [values["full_reset/event"] for values in found] == [1, 2]
    assert len(seen) == 2
    assert all(equal(after, start) and not equal(before, start) and not kept for before, after, kept in seen)


def test_a_checkpoint_has_the_state_and_a_later_one_without_the_callback_has_none(tmp_path):
    def state(folder):
        return torch.load(folder / "optimizer.pt", weights_only=False)["param_groups"][0].get("lightning_fire.ours")

    callback = PlasticityCallback(FullReset(), EveryNSteps(2), name="ours")
    training = trainer(tmp_path, callback, save_strategy="steps", save_steps=3)
    start = copy.deepcopy(training.model)
    training.train()
    for step, events, ended in ((3, 2, False), (6, 3, True)):  # an event comes after the checkpoint of its step
        found = state(tmp_path / f"checkpoint-{step}")
        assert (found["step"], found["ended"], found["chunk"]) == (step, ended, 0)
        assert found["training"]["event"] == events and not found["training"]["method"]
        assert all(torch.equal(found["training"]["initial"][name], p) for name, p in start.named_parameters())
    training.remove_callback(callback)
    training.args.output_dir = str(tmp_path / "later")
    training.train()
    assert state(tmp_path / "later" / "checkpoint-3") is None


class Records(StepMethod):
    """A step method that notes what is called, with the gradient that it sees."""

    name = "records"

    def __init__(self):
        self.calls = []

    def begin(self, model, training):
        attached, calls = Attached(), self.calls
        attached.before_step = lambda optimizer: calls.append(("before", model.head.weight.grad.norm().item()))
        attached.after_step = lambda: calls.append(("after", model.head.weight.detach().clone()))
        attached.close = lambda: calls.append(("close",))
        return attached


def test_a_step_method_is_called_around_each_step_with_clipped_gradients(tmp_path):
    method = Records()
    options = {"gradient_accumulation_steps": 3, "max_steps": 2, "max_grad_norm": 1e-3}
    training = trainer(tmp_path, PlasticityCallback(method), model=net(), **options)
    training.train()
    assert [call[0] for call in method.calls] == ["before", "after", "before", "after", "close"]
    assert all(0 < call[1] <= 1e-3 for call in method.calls[::2][:2])
    assert torch.equal(method.calls[3][1], training.model.head.weight)


def test_gradients_are_unscaled_and_a_skipped_step_does_not_count(tmp_path):
    """As accelerate does in half precision, which takes a GPU."""
    method = Records()
    callback = PlasticityCallback(method)
    training = trainer(tmp_path, callback, Refuse(), model=net())
    with contextlib.suppress(KeyboardInterrupt):
        training.train()
    callback.on_step_begin(training.args, training.state, None)
    for parameter in training.model.parameters():
        parameter.grad = torch.full_like(parameter, 8.0)
    inner = torch.optim.SGD(training.model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))  # makes its scale
    optimizer = SimpleNamespace(scaler=scaler, optimizer=inner, step_was_skipped=False)
    size = training.model.head.weight.numel() ** 0.5
    for _ in range(2):  # the second time they are unscaled already
        callback.on_pre_optimizer_step(training.args, training.state, None, optimizer=optimizer)
        assert method.calls.pop() == ("before", pytest.approx(size))
    callback.on_optimizer_step(training.args, training.state, None, optimizer=optimizer)
    assert method.calls.pop()[0] == "after"
    optimizer.step_was_skipped = True
    callback.on_optimizer_step(training.args, training.state, None, optimizer=optimizer)
    assert not method.calls


class Odd(IterableDataset):
    """Batches of which a step of two leaves one over."""

    def __iter__(self):
        yield from blocks()


def test_no_gradient_of_the_old_network_is_left_at_an_event(tmp_path):
    """A stream of three batches, in steps of two: the last one waits for the next epoch."""
    found = []

    class Sees(PlasticityCallback):
        def _act(self, *args, **options):
            found.append([p.grad is None for p in self._network.parameters()])
            return super()._act(*args, **options)

    options = {"gradient_accumulation_steps": 2, "max_steps": 4}
    training = trainer(tmp_path, Sees(FIRE(), EveryNSteps(1)), data=Odd(), **options)
    training.train()
    assert events(training) == [1, 2, 3] and all(map(all, found))


def test_batches_for_methods_depend_on_the_event_alone(tmp_path):
    """Drawn without training's random state, in another order at each event; the batches of training stay."""

    class Draws(EventMethod):
        name, changes_weights, needs_batches = "draws", False, True

        def __init__(self):
            self.batches = []

        def plan(self, model, training):
            hook = model.register_forward_pre_hook(
                lambda _, args, kwargs: self.batches.append((training.event, kwargs["input_ids"])), with_kwargs=True
            )
            training.run(2)
            hook.remove()
            return Change(report=Report())

    def drawn(seed):
        method = Draws()
        trainer(tmp_path, PlasticityCallback(method, EveryNSteps(2)), model=net(), seed=seed).train()
        return method.batches

    one, other = drawn(1), drawn(2)
    assert [event for event, _ in one] == [1, 1, 2, 2] and all(batch.shape == (4, 16) for _, batch in one)
    assert all(torch.equal(batch, again) for (_, batch), (_, again) in zip(one, other, strict=True))
    assert not torch.equal(one[0][1], one[1][1]) and not torch.equal(one[0][1], one[2][1])


def said_in(caplog, train):
    caplog.clear()
    with caplog.at_level(logging.INFO, "lightning_fire"):
        train()
    return [record.message for record in caplog.records if record.name == "lightning_fire"]


def test_one_sentence_before_a_training_at_each_event_and_after_one_without(tmp_path, caplog):
    middle, folder = AtFraction(0.5), str(tmp_path / "checkpoint-4")
    before, acted = said_in(
        caplog, trainer(tmp_path, PlasticityCallback(FIRE(), middle), save_strategy="steps", save_steps=4).train
    )
    assert before.startswith("fire acts on 7 of 7 weight matrices, preset gpt (")
    assert before.endswith(", when AtFraction(fraction=0.5) is due.")
    assert acted.startswith("fire acted at epoch 1, step 3 (dfi_normalized ")
    resumed = trainer(tmp_path / "next", PlasticityCallback(FIRE(), middle))
    again, none = said_in(caplog, lambda: resumed.train(resume_from_checkpoint=folder))  # its time has passed
    assert again == before
    assert none == "fire had no event in this train(): AtFraction(fraction=0.5) was not due."
    (each,) = said_in(caplog, trainer(tmp_path, PlasticityCallback(L2Init(0.1))).train)
    assert each == "l2_init acts at each step."
    assert said_in(caplog, trainer(tmp_path, PlasticityCallback(MeasurePlasticity()), model=net()).train) == []


def test_what_is_left_out_is_said_once(tmp_path, caplog):
    model = gpt2()
    model.transformer.h[0].mlp.c_fc.weight.requires_grad_(False)
    callback, found = PlasticityCallback(FIRE(Weights(include=["attn", "c_proj"])), EveryNSteps(2)), []

    class Freezes(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **options):
            if state.global_step == 4:  # the optimizer forgets a weight
                (group, *_) = options["optimizer"].param_groups
                kept = [p for p in group["params"] if p is not model.transformer.h[0].attn.c_proj.weight]
                found.append(len(group["params"]) - len(kept))
                group["params"] = kept

    training = trainer(tmp_path, Freezes(), callback, model=model, max_steps=7)
    before, first, second, third = said_in(caplog, training.train)
    assert found == [1] and "leaves out" not in before + first + third
    assert second.endswith("; leaves out transformer.h.0.attn.c_proj.weight: no optimizer trains it)")


def test_the_best_metric_that_is_forgotten_is_part_of_the_sentence(tmp_path, caplog):
    often = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "eval_loss"}
    kind = partial(Evaluating, eval_dataset=blocks())
    training = trainer(tmp_path, PlasticityCallback(FIRE(), EveryNSteps(4)), kind=kind, **often)
    *_, acted = said_in(caplog, training.train)
    assert acted.endswith("; the Trainer forgets its best eval_loss)")


def test_another_model_is_named(tmp_path, caplog):
    callback = PlasticityCallback(FIRE(), EveryNSteps(2))
    assert said_in(caplog, lambda: [trainer(tmp_path, callback) for _ in range(2)]) == []  # none was trained
    trainer(tmp_path, callback).train()
    (named,) = said_in(caplog, lambda: trainer(tmp_path, callback))
    assert named == "fire takes another model for the same one, later. For a new one make a new callback."


def test_functions_are_checked():
    for argument in ("log", "losses"):
        with pytest.raises(TypeError, match=f"`{argument}` must be a function, got 3"):
            PlasticityCallback(FIRE(), **{argument: 3})


def test_an_event_logs_these_keys_and_none_by_layer(tmp_path):
    training = trainer(tmp_path, PlasticityCallback(FIRE(), EveryNSteps(3)), model=net())
    training.train()
    (entry,) = logged(training, "fire/event")
    measured = {f"fire/{key}{when}" for key in ("dfi_normalized",) for when in ("_before", "_after")}
    raw = {f"fire.raw/dfi{when}" for when in ("_before", "_after")}
    others = {"fire/event", "fire/seconds", "fire/sfe", "fire/sfe_normalized"}
    assert {key for key in entry if key.startswith("fire")} == measured | raw | others
