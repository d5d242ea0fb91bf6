"""transformers: one text after the other, with one callback for all trainings."""

import tempfile

from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, TrainingArguments

from lightning_fire import FIRE
from lightning_fire.integrations.huggingface import PlasticityCallback


# stand-in for your texts
def blocks(text):
    tokens = list(text.encode()) * 20
    return [{"input_ids": tokens[i : i + 32], "labels": tokens[i : i + 32]} for i in range(0, 16 * 32, 32)]


phases = blocks("In the beginning God created the heaven. "), blocks("def add(first, second): return first + second ")

# stand-in for your model
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
model = AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=256, num_key_value_heads=2, **sizes))

# stand-in for your settings
folder = tempfile.mkdtemp()
arguments = TrainingArguments(folder, max_steps=20, learning_rate=1e-3, report_to="none", use_cpu=True)

fire = PlasticityCallback(FIRE(steps=5))  # five steps, as in the paper for GPT
for data in phases:
    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[fire])
    trainer.train()
