"""sentence-transformers: each month's pairs train the same model, with one callback for all trainings."""

import tempfile

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.models import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from lightning_fire import FIRE
from lightning_fire.integrations.huggingface import PlasticityCallback


# stand-in for your pairs
def month(number):
    words = torch.randint(60, (64, 12), generator=torch.Generator().manual_seed(number)).tolist()
    texts = [" ".join(f"w{word}" for word in row) for row in words]
    return Dataset.from_dict({"anchor": [text[:20] for text in texts], "positive": [text[20:] for text in texts]})


# stand-in for the model that you fine-tune
folder = tempfile.mkdtemp()
words = {word: index for index, word in enumerate(["[PAD]", "[UNK]", *(f"w{i}" for i in range(60))])}
tokenizer = Tokenizer(models.WordLevel(words, "[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
BertModel(BertConfig(vocab_size=len(words), **sizes)).save_pretrained(folder)
model = SentenceTransformer(modules=[Transformer(folder), Pooling(16)], device="cpu")

# stand-in for your settings
options = {"num_train_epochs": 2, "learning_rate": 1e-3, "report_to": "none", "use_cpu": True}
arguments = SentenceTransformerTrainingArguments(tempfile.mkdtemp(), **options)

loss = MultipleNegativesRankingLoss(model)
fire = PlasticityCallback(FIRE())
for number in range(2):
    trainer = SentenceTransformerTrainer(model, arguments, train_dataset=month(number), loss=loss, callbacks=[fire])
    trainer.train()

model.save(folder)
saved = SentenceTransformer(folder, device="cpu").state_dict()
assert all(value.equal(saved[name]) for name, value in model.state_dict().items())
