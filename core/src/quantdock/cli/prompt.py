"""The prompt as the model's tokens, and what can be wrong with it or with the tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantdock.errors import CheckpointError, ConfigError


@dataclass(slots=True, kw_only=True)
class Prompt:
    """What the user wrote; ``read`` makes tokens of it."""

    folder: Path  # of the checkpoint
    text: str
    chat: bool = False  # put the text into the tokenizer's chat template
    trust_remote_code: bool = False
    tokenizer: Any = None
    inputs: Any = None  # of model.generate: "input_ids" [1, tokens] and what belongs to it

    def read(self) -> None:
        """Read the tokenizer and encode the text.

        Raises:
            CheckpointError: there is no tokenizer, or it cannot be read.
            ConfigError: it has no chat template, or the text has no tokens.
        """
        self.tokenizer = _read_tokenizer(self.folder, self.trust_remote_code)
        text = _in_template(self.tokenizer, self.text) if self.chat else self.text
        self.inputs = self.tokenizer(text, return_tensors="pt", add_special_tokens=not self.chat)
        if self.inputs["input_ids"].numel() == 0:
            raise ConfigError(
                f"The prompt {text!r} has no tokens.",
                why=["this tokenizer adds none of its own"],
                todo="Write at least one word for the model to continue.",
            )

    def require_fit(self, model: Any) -> None:
        """Refuse tokens that the model has no embedding for.

        Raises:
            CheckpointError: the tokenizer is one of another model.
        """
        highest = int(self.inputs["input_ids"].max())
        embedding = model.get_input_embeddings()  # of which a rank may hold some rows
        rows = getattr(embedding, "num_embeddings", embedding.weight.shape[0])
        if highest >= rows:
            raise CheckpointError(
                f"The tokenizer of {self.folder} does not fit the model.",
                why=[f"it gives token {highest}; the embedding has {rows} rows"],
                todo="Put the tokenizer of this very model into the folder.",
                path=self.folder,
            )

    def too_long(self, model: Any, max_new_tokens: int) -> str:
        """Return that text may go beyond the positions the model was made for; "" if it cannot."""
        known = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        tokens = self.inputs["input_ids"].shape[1]
        if not isinstance(known, int) or tokens + max_new_tokens <= known:
            return ""
        return (
            f"{tokens:,} tokens of the prompt and up to {max_new_tokens:,} new ones are more than "
            f"the {known:,} positions that the model was made for; what follows them is no text"
        )


def _read_tokenizer(folder: Path, trust_remote_code: bool) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except Exception as error:
        none_there = not any(folder.glob("tokenizer*"))
        raise CheckpointError(
            f"The tokenizer of {folder} cannot be read.",
            why=["no file tokenizer* is there" if none_there else _first_line(error)],
            todo="Put tokenizer.json and tokenizer_config.json of the model into the folder.",
            path=folder,
        ) from error


def _in_template(tokenizer: Any, text: str) -> str:
    if not getattr(tokenizer, "chat_template", None):
        raise ConfigError(
            "--chat needs a chat template, and this checkpoint has none.",
            why=["tokenizer_config.json and chat_template.jinja are where it would stand"],
            todo="Leave --chat out, or use the instruction-tuned model with its own files.",
        )
    messages = [{"role": "user", "content": text}]
    try:
        return str(
            tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        )
    except Exception as error:
        raise ConfigError(
            "The checkpoint's chat template cannot be used.",
            why=[_first_line(error)],
            todo="Leave --chat out, or correct chat_template in its files.",
        ) from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"
