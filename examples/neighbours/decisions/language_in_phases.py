"""A small Llama has learned the King James Bible (kjv.txt, a verse a line) and is to learn the source of Python.

python examples/neighbours/decisions/language_in_phases.py kjv.txt FOLDER
"""

import sys
import sysconfig
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, TrainingArguments, set_seed

from lightning_fire import FIRE, ShrinkAndPerturb, decide

LENGTH, STEPS, NEW_STEPS = 128, 1500, 600  # bytes a block; 8 blocks a step
text, folder = Path(sys.argv[1]), Path(sys.argv[2])
files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
held_out = files[::10]
sizes = {"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 4, "num_attention_heads": 4}
config = LlamaConfig(vocab_size=256, num_key_value_heads=2, max_position_embeddings=LENGTH, **sizes)


def blocks(data, most=20_000):
    rows = torch.frombuffer(bytearray(data), dtype=torch.uint8)[: len(data) // LENGTH * LENGTH].view(-1, LENGTH).long()
    return [{"input_ids": row, "labels": row} for row in rows[:: -(-len(rows) // most)]]


new = blocks(b"".join(file.read_bytes() for file in files if file not in held_out))
held_out = blocks(b"".join(file.read_bytes() for file in held_out), most=500)


def trained(model, data, steps, seed):
    options = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "save_strategy": "no", "seed": seed}
    arguments = TrainingArguments(folder, max_steps=steps, learning_rate=2e-3, warmup_steps=50, **options)
    trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=held_out)
    trainer.train()
    return trainer


if not (folder / "bible").exists():
    set_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    trained(model, blocks(text.read_bytes()), STEPS, seed=0)
    model.save_pretrained(folder / "bible")


def train(seed, start):
    model = start(AutoModelForCausalLM.from_config(config))
    return trained(model, new, NEW_STEPS, seed).evaluate()["eval_loss"]


methods = {"fire": FIRE(steps=5), "fire_procrustes": FIRE(steps=5, scale="procrustes")}
methods["shrink_and_perturb"] = ShrinkAndPerturb(0.5)
decide(train, folder / "bible", methods, seeds=3, mode="min", metric="loss", output=folder)
