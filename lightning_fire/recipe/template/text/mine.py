"""New text for a language model: continue with its weights, change them first, or train from scratch? `python mine.py`

Texts, tokens and model are small, so that it runs as it is: English, then Python, as bytes.
"""

import argparse
from pathlib import Path
from pydoc_data import topics

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PrinterCallback, Trainer, TrainingArguments

from lightning_fire import FIRE, ShrinkAndPerturb, decide

OLD = Path(topics.__file__).read_text(encoding="utf-8")  # yours: what the model has learned
NEW = Path(argparse.__file__).read_text(encoding="utf-8")  # yours: what it is to learn now
MODEL = Path("old_model")  # yours: a folder of save_pretrained; without it, a new model learns OLD first
SIZES = {"vocab_size": 256, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 2}
CONFIG = AutoConfig.for_model("gpt2", bos_token_id=0, eos_token_id=0, **SIZES)
# CONFIG = AutoConfig.from_pretrained(MODEL)  # of a model of yours
STEPS = 200  # optimizer steps on each text
SEEDS = 5


def samples(text: str) -> list[dict]:
    """Return the blocks of a text. Yours: your tokenizer, for example AutoTokenizer.from_pretrained(MODEL)."""
    tokens = torch.tensor(list(text.encode()))
    return [{"input_ids": block, "labels": block} for block in tokens.split(64) if len(block) == 64]


def trained(model, text: str, seed: int = 0) -> Trainer:
    """Train a model on a text. Yours: the arguments that you train with."""
    options = {"learning_rate": 1e-3, "per_device_train_batch_size": 16, "warmup_steps": STEPS // 10}
    quiet = {"report_to": "none", "logging_strategy": "no", "save_strategy": "no", "disable_tqdm": True}
    arguments = TrainingArguments("runs", max_steps=STEPS, seed=seed, **options, **quiet)
    trainer = Trainer(model, arguments, train_dataset=samples(text))
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer


def train(seed, start) -> float:
    """Learn the new text from one start; return the loss on its last tenth, which training does not see."""
    split = len(NEW) * 9 // 10
    model = start(AutoModelForCausalLM.from_config(CONFIG))
    return trained(model, NEW[:split], seed).evaluate(samples(NEW[split:]))["eval_loss"]


if __name__ == "__main__":
    if not MODEL.exists():
        trained(AutoModelForCausalLM.from_config(CONFIG), OLD).model.save_pretrained(MODEL)
    methods = [FIRE(steps=5), ShrinkAndPerturb(strength=0.5)]
    decide(train, MODEL, methods, seeds=SEEDS, mode="min", metric="loss", worth=0.02)
