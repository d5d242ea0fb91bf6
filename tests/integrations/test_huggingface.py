"""Methods in the Trainer of Hugging Face: a small GPT-2 on the bytes of a text."""

import contextlib
import copy
import logging
from functools import partial
from types import SimpleNamespace

import pytest
import torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from lightning_fire import (  # noqa: E402
    AtEpochs,
    AtFraction,
    AtNewData,
    EveryNSteps,
    Weights,
    WhenMetric,
    fire_,
    fresh_values,
    shrink_and_perturb_,
)
from lightning_fire.integrations.huggingface import ReinitCallback  # noqa: E402

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


def trainer(folder, *callbacks, model=None, data=None, **options):
    options = {"max_steps": STEPS, "save_strategy": "no", "logging_steps": 1, "learning_rate": 1e-2, **options}
    arguments = transformers.TrainingArguments(
        str(folder), per_device_train_batch_size=4, report_to="none", disable_tqdm=True, use_cpu=True, **options
    )
    return transformers.Trainer(model or gpt2(), arguments, train_dataset=data or blocks(), callbacks=list(callbacks))


class Watched:
    """A method that records the model before and after, and the step counts of Adam that remain."""

    def __init__(self, method=fire_):
        self.method, self.seen = method, []

    def __call__(self, model, optimizers):
        before = copy.deepcopy(model)
        report = self.method(model, optimizers=optimizers)
        parameters = dict(model.named_parameters())
        kept = {name for name, parameter in parameters.items() if parameter in optimizers[0].state}
        self.seen.append((before, copy.deepcopy(model), kept))
        return report


def assert_equal(one, other):
    for (name, a), (_, b) in zip(one.state_dict().items(), other.state_dict().items(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize(
    ("when", "steps"),
    [
        (AtFraction(0.5), [3]),
        (EveryNSteps(2), [2, 4]),
        (AtEpochs([1]), [3]),
        ([EveryNSteps(2), AtEpochs([1])], [2, 3, 4]),
        (AtNewData(skip_first=False), [0]),
        (None, []),
    ],
)
def test_it_acts_when_the_schedule_is_due(tmp_path, when, steps):
    method = Watched()
    training = trainer(tmp_path, ReinitCallback(method, when))
    training.train()
    logged = [entry for entry in training.state.log_history if "Watched/sfe" in entry]
    assert [entry["step"] for entry in logged] == steps
    assert len(method.seen) == len(steps)


def test_an_event_is_the_method_and_nothing_else(tmp_path):
    method = Watched()
    trainer(tmp_path, ReinitCallback(method, AtFraction(0.5))).train()
    ((before, after, kept),) = method.seen
    expected = copy.deepcopy(before)
    selected = {view.parameter for view in Weights().select(expected)}
    names = {name for name, parameter in expected.named_parameters() if parameter in selected}
    fire_(expected)
    assert_equal(after, expected)
    names_of_all = {name for name, _ in expected.named_parameters()}
    assert kept == names_of_all - names  # the state inside accelerate's wrapper


def test_a_later_training_with_the_same_callback_is_new_data(tmp_path, caplog):
    method, model = Watched(partial(shrink_and_perturb_, target=fresh_values(gpt2(), seed=1))), gpt2()
    callback = ReinitCallback(method)
    with caplog.at_level(logging.INFO):
        for start in (0, 200, 300):
            trainer(tmp_path, callback, model=model, data=blocks(start)).train()
    assert len(method.seen) == 2
    assert caplog.text.count("acted at epoch 0, step 0") == 2


@pytest.mark.parametrize("when", [AtFraction(0.5), AtEpochs([1]), EveryNSteps(2), AtNewData(skip_first=False)])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, when):
    """From each of its checkpoints, before and after the event."""
    whole = trainer(tmp_path, ReinitCallback(when=when), save_strategy="steps", save_steps=1, save_only_model=False)
    whole.train()
    for step in (2, 3, 4):
        method = Watched()
        resumed = trainer(tmp_path / "resumed", ReinitCallback(method, when))
        resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        assert_equal(resumed.model, whole.model)
        due = {"AtFraction": [3], "AtEpochs": [3], "EveryNSteps": [2, 4], "AtNewData": [0]}[type(when).__name__]
        assert len(method.seen) == sum(event >= step for event in due)


def test_a_training_after_a_resumed_one_is_on_new_data(tmp_path):
    """In the process that resumes, the callback has not seen the start."""
    trainer(tmp_path, save_strategy="steps", save_steps=2, save_only_model=False).train()
    method = Watched()
    callback, model = ReinitCallback(method), gpt2()
    trainer(tmp_path / "resumed", callback, model=model).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert not method.seen
    trainer(tmp_path / "next", callback, model=model, data=blocks(200)).train()
    assert len(method.seen) == 1


def test_a_logger_gets_what_an_event_did(tmp_path):
    training = trainer(tmp_path)
    training.add_callback(ReinitCallback(when=AtFraction(0.5), log=training.log))
    training.train()
    (entry,) = [entry for entry in training.state.log_history if "fire/sfe" in entry]
    assert entry["fire/dfi_normalized_after"] < entry["fire/dfi_normalized_before"]
    assert entry["step"] == 3


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")
def test_lora_factors_are_left_alone_and_a_merged_model_is_not(tmp_path):
    """Orthogonal factors would make an adapter, which is a small correction, as large as the model."""
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(gpt2(), peft.LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True))
    with pytest.raises(ValueError, match=r"selects no weight.*low-rank factor of an adapter"):
        trainer(tmp_path, ReinitCallback(when=AtFraction(0.5)), model=model).train()
    merged = model.merge_and_unload().requires_grad_()
    assert fire_(merged)["dfi_normalized_after"] < 0.1


def test_warns_of_a_learning_rate_near_0(tmp_path, caplog):
    constant = {"lr_scheduler_type": "constant"}
    trainer(tmp_path, ReinitCallback(when=EveryNSteps(5)), **constant).train()
    assert "learning rate of" not in caplog.text
    trainer(tmp_path, ReinitCallback(when=EveryNSteps(198)), max_steps=199, learning_rate=1e-3).train()
    assert "fire acted at step 198 with a learning rate of 5e-06" in caplog.text


def test_unsupported_settings_are_an_error(tmp_path):
    with pytest.raises(ValueError, match="cannot be used here: only the steps of training are known"):
        ReinitCallback(when=[AtEpochs([1]), WhenMetric("eval_loss", above=1.0)])
    with pytest.raises(TypeError, match="`when` must be a schedule"):
        ReinitCallback(when=3)
    with pytest.raises(ValueError, match=r"when=EveryNSteps\(n=6\)\) can never act: training ends after 6 steps"):
        trainer(tmp_path, ReinitCallback(when=EveryNSteps(6))).train()


@pytest.mark.parametrize(
    ("deepspeed", "version", "refused"), [(None, 1, True), ({}, None, False), ({"a": 1}, None, True), (None, 2, False)]
)
def test_weights_in_pieces_are_an_error(monkeypatch, deepspeed, version, refused):
    """No such training runs here: the plugin of accelerate is a stand-in."""
    from lightning_fire.integrations import huggingface

    plugin = None if version is None else SimpleNamespace(fsdp_version=version)
    monkeypatch.setattr(huggingface, "AcceleratorState", lambda: SimpleNamespace(fsdp_plugin=plugin))
    state = SimpleNamespace(num_train_epochs=1, max_steps=9, global_step=0)
    with pytest.raises(ValueError, match="under DeepSpeed or FSDP1") if refused else contextlib.nullcontext():
        ReinitCallback().on_train_begin(SimpleNamespace(deepspeed=deepspeed), state, None)
