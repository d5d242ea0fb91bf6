"""From text to token numbers."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

END_OF_TEXT = "<|endoftext|>"
"""GPT-2's separator of documents, number 50256."""


class ByteTokenizer:
    """The bytes of UTF-8 are the tokens. There is none to separate documents."""

    name = "bytes"
    vocab_size = 256
    dtype = "uint8"
    end_of_text: int | None = None

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the tokens of each text, `(tokens,)`."""
        return [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]


class TokenizerFile:
    """A tokenizer of the `tokenizers` library, as a `tokenizer.json` holds it.

    Text that looks like a special token, such as a `<|endoftext|>` in a document, is text like any other, as in
    nanoGPT. No tokens are added, dropped or cut off.
    """

    def __init__(self, tokenizer: str, end_of_text: str | None = END_OF_TEXT):
        self.name, self._tokenizer = _open(tokenizer)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        if getattr(self._tokenizer.model, "dropout", None):
            self._tokenizer.model.dropout = None
        numbers = self._tokenizer.get_vocab(with_added_tokens=True)
        if not numbers:
            raise ValueError(f"{tokenizer} has no tokens")
        self.vocab_size = max(numbers.values()) + 1
        self.dtype = "uint16" if self.vocab_size <= 1 << 16 else "uint32"
        if end_of_text is not None and end_of_text not in numbers:
            raise ValueError(f"{tokenizer} has no token {end_of_text}: --end-of-text names another one, or none")
        self.end_of_text = None if end_of_text is None else numbers[end_of_text]
        self._encode = getattr(self._tokenizer, "encode_batch_fast", self._tokenizer.encode_batch)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the tokens of each text, `(tokens,)`, on all cores."""
        return [np.array(found.ids, np.int64) for found in self._encode(list(texts), add_special_tokens=False)]


def _open(tokenizer: str) -> tuple[str, Any]:
    if tokenizer != "gpt2" and not Path(tokenizer).is_file():
        raise FileNotFoundError(f"--tokenizer must be bytes, gpt2 or a tokenizer.json, and {tokenizer} does not exist")
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ImportError(f"--tokenizer {tokenizer} needs `tokenizers`: pip install 'lightning-fire[text]'") from error
    if tokenizer == "gpt2":
        try:
            return "gpt2", Tokenizer.from_pretrained("gpt2")
        except Exception as error:
            raise RuntimeError(
                f"the tokenizer of gpt2 cannot be downloaded ({_brief(error)}): give its file, --tokenizer FILE.json"
            ) from error
    content = Path(tokenizer).read_bytes()
    try:
        opened = Tokenizer.from_str(content.decode())
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"{tokenizer} is no tokenizer.json of the `tokenizers` library ({_brief(error)})") from error
    return f"tokenizer.json {hashlib.sha256(content).hexdigest()[:16]}", opened


def _brief(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
