"""trl: supervised fine-tuning on one text, then on another, with one callback for both."""

import tempfile

from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from lightning_fire import FIRE
from lightning_fire.integrations.huggingface import PlasticityCallback

# stand-in for your texts
phases = [
    Dataset.from_dict({"text": [f"{number} and God created the heaven" for number in range(64)]}),
    Dataset.from_dict({"text": [f"def add(first): return first + {number}" for number in range(64)]}),
]

# stand-in for your tokenizer and your model
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
letters = {letter: index for index, letter in enumerate(["<pad>", "<eos>", *alphabet])}
tokenizer = Tokenizer(models.BPE(letters, []))
tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
model = LlamaForCausalLM(LlamaConfig(vocab_size=len(letters), num_key_value_heads=2, eos_token_id=1, **sizes))

# stand-in for your settings
folder = tempfile.mkdtemp()
arguments = SFTConfig(folder, max_steps=10, learning_rate=1e-3, report_to="none", use_cpu=True, bf16=False)

fire = PlasticityCallback(FIRE(steps=5))  # five steps, as in the paper for GPT
for data in phases:
    trainer = SFTTrainer(model, arguments, train_dataset=data, processing_class=tokenizer, callbacks=[fire])
    trainer.train()
