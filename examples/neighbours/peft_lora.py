"""peft: merge the adapter of the last phase into the weights, act on them, and train a new adapter."""

import tempfile

from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, TrainingArguments

from lightning_fire import Weights, fire_


# stand-in for your texts
def blocks(text):
    tokens = list(text.encode()) * 20
    return [{"input_ids": tokens[i : i + 32], "labels": tokens[i : i + 32]} for i in range(0, 16 * 32, 32)]


first, second = blocks("In the beginning God created the heaven. "), blocks("def add(one, other): return one + other ")

# stand-in for your model
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
model = AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=256, num_key_value_heads=2, **sizes))

# stand-in for your settings
folder = tempfile.mkdtemp()
arguments = TrainingArguments(folder, max_steps=20, learning_rate=1e-3, report_to="none", use_cpu=True)

lora = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")  # not the output layer


def trained(base, data):
    adapted = get_peft_model(base, lora)
    Trainer(adapted, arguments, train_dataset=data).train()
    return adapted.merge_and_unload().requires_grad_()


model = trained(model, first)
print(fire_(model, Weights(exclude=["lm_head"]), steps=5))
model = trained(model, second)
