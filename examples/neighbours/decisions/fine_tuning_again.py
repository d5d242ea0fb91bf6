"""A small sentence-transformer has learned the King James Bible (kjv.txt, a verse a line) and is to find code.

python examples/neighbours/decisions/fine_tuning_again.py kjv.txt FOLDER
"""

import ast
import random
import sys
import sysconfig
from pathlib import Path

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.evaluation import InformationRetrievalEvaluator
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.models import Pooling, Transformer
from tokenizers import ByteLevelBPETokenizer
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, set_seed

from lightning_fire import FIRE, ShrinkAndPerturb, decide

text, folder = Path(sys.argv[1]), Path(sys.argv[2])
verses = text.read_text().splitlines()
bible = list(zip(verses[:-1:6], verses[1::6], strict=True))  # each with the one that follows
code = []
for file in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.FunctionDef) and (doc := ast.get_docstring(node)) and node.body[1:]:
            code.append((doc.split("\n\n")[0], "\n".join(map(ast.unparse, node.body[1:]))))
random.Random(0).shuffle(code)
held_out, code = code[:400], code[400:]
size = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4}


def new_model():
    BertModel(BertConfig(vocab_size=4000, pad_token_id=0, **size)).save_pretrained(folder / "new")
    return SentenceTransformer(
        modules=[Transformer(str(folder / "new"), max_seq_length=32), Pooling(size["hidden_size"])], device="cpu"
    )


def trained(model, pairs, epochs, seed):
    options = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "save_strategy": "no", "seed": seed}
    arguments = SentenceTransformerTrainingArguments(
        folder, num_train_epochs=epochs, per_device_train_batch_size=32, learning_rate=1e-3, warmup_steps=50, **options
    )
    data = Dataset.from_dict(dict(zip(("anchor", "positive"), map(list, zip(*pairs, strict=True)), strict=True)))
    SentenceTransformerTrainer(model, arguments, data, loss=MultipleNegativesRankingLoss(model)).train()
    return model


def train(seed, start):
    model = trained(start(new_model()), code, 3, seed)
    queries, bodies = ({str(i): pair[side] for i, pair in enumerate(held_out)} for side in (0, 1))
    scores = InformationRetrievalEvaluator(queries, bodies, {key: {key} for key in queries})(model)
    return scores["cosine_mrr@10"]


if not (folder / "bible.pt").exists():
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator([*verses, *map("\n".join, code)], 4000, special_tokens=["[PAD]"], show_progress=False)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer, pad_token="[PAD]").save_pretrained(folder / "new")
    set_seed(0)
    torch.save(trained(new_model(), bible, 3, seed=0).state_dict(), folder / "bible.pt")

# FIRE() takes queries and keys
methods = {"fire": FIRE(), "fire_procrustes": FIRE(scale="procrustes"), "shrink_and_perturb": ShrinkAndPerturb(0.5)}
decide(train, folder / "bible.pt", methods, seeds=3, metric="MRR@10", output=folder)
