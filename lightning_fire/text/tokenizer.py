"""From text to token numbers."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

END_OF_TEXT = "<|endoftext|>"  # GPT-2's separator of documents, number 50256
Encode = Callable[[Sequence[str]], list[np.ndarray]]


def open_tokenizer(name: str, end_of_text: str | None) -> tuple[dict[str, Any], Encode]:
    """Open a tokenizer.

    Text that looks like a special token, such as a `<|endoftext|>` in a document, is text like any other, as in
    nanoGPT. No tokens are added, dropped or cut off.

    Args:
        name: `bytes`, a `tokenizer.json`, or the name of one on the Hugging Face hub, such as `gpt2`.
        end_of_text: The token that ends a document, `none`, or None: the default.

    Returns:
        Its entries in `meta.json`, and a function from texts to the tokens of each, `(tokens,)`, on all cores.
    """
    if name == "bytes":
        if end_of_text not in (None, "none"):
            raise ValueError(f"bytes have no token {end_of_text}: --end-of-text needs another --tokenizer")
        return {"dtype": "uint8", "vocab_size": 256, "tokenizer": "bytes", "end_of_text": None}, encode_bytes
    about, tokenizer = _open(name)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    if getattr(tokenizer.model, "dropout", None):
        tokenizer.model.dropout = None
    numbers = tokenizer.get_vocab(with_added_tokens=True)
    end = None if end_of_text == "none" else end_of_text or END_OF_TEXT
    if end is not None and end not in numbers:
        raise ValueError(f"{name} has no token {end}: --end-of-text names another one, or none")
    size = max(numbers.values()) + 1
    dtype = "uint16" if size <= 1 << 16 else "uint32"
    encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)
    return (
        {"dtype": dtype, "vocab_size": size, "tokenizer": about, "end_of_text": numbers.get(end)},
        lambda texts: [np.array(found.ids, np.int64) for found in encode(list(texts), add_special_tokens=False)],
    )


def encode_bytes(texts: Sequence[str]) -> list[np.ndarray]:
    """Return the bytes of UTF-8 of each text, uint8 `(bytes,)`."""
    return [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]


def _open(name: str) -> tuple[str, Any]:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ImportError(f"--tokenizer {name} needs `tokenizers`: pip install 'lightning-fire[text]'") from error
    try:
        if not Path(name).is_file() and not name.endswith(".json"):
            return name, Tokenizer.from_pretrained(name)
        content = Path(name).read_bytes()
        return f"tokenizer.json {hashlib.sha256(content).hexdigest()[:16]}", Tokenizer.from_str(content.decode())
    except Exception as error:  # the library raises nothing narrower
        brief = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(f"{name} is neither a tokenizer.json nor one that can be downloaded ({brief})") from error
