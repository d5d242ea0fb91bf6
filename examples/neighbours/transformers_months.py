"""transformers: a process for each month, which begins with the weights of the last month and can be interrupted."""

import os
import tempfile
from pathlib import Path

from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from lightning_fire import FIRE, AtNewData
from lightning_fire.integrations.huggingface import PlasticityCallback


# stand-in for your texts
def blocks(text):
    tokens = list(text.encode()) * 20
    return [{"input_ids": tokens[i : i + 32], "labels": tokens[i : i + 32]} for i in range(0, 16 * 32, 32)]


months = blocks("In the beginning God created the heaven. "), blocks("def add(first, second): return first + second ")

# stand-in for your model
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
config = LlamaConfig(vocab_size=256, num_key_value_heads=2, **sizes)

# stand-in for your settings, and for the process of the first month
settings = {"max_steps": 20, "learning_rate": 1e-3, "use_cpu": True}
os.chdir(tempfile.mkdtemp())
base = "runs/month0/model"
AutoModelForCausalLM.from_config(config).save_pretrained(base)

month = len(list(Path("runs").glob("month*/model")))  # the months that have ended
folder = f"runs/month{month}"
model = AutoModelForCausalLM.from_pretrained(f"runs/month{month - 1}/model" if month else base)
fire = PlasticityCallback(FIRE(steps=5), AtNewData(skip_first=month == 0), log=lambda values: trainer.log(values))
arguments = TrainingArguments(folder, report_to="tensorboard", **settings)
trainer = Trainer(model, arguments, train_dataset=months[month], callbacks=[fire])
trainer.train(resume_from_checkpoint=get_last_checkpoint(folder))  # None, unless this month was interrupted
trainer.save_model(f"{folder}/model")
