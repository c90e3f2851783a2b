"""Tokenizer and prompt: what goes wrong with them, in words."""

from __future__ import annotations

import shutil

import pytest
import torch

from demo.models import TINY_LLAMA
from quantdock.cli.prompt import Prompt
from quantdock.errors import CheckpointError, ConfigError


@pytest.fixture
def folder(tmp_path):
    """Return a folder with the config and the tokenizer of the small Llama."""
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY_LLAMA / file, tmp_path / file)
    return tmp_path


def read(folder, text="In the beginning", **options):
    prompt = Prompt(folder=folder, text=text, **options)
    prompt.read()
    return prompt


def test_a_prompt_becomes_tokens(folder):
    prompt = read(folder)
    (ids,) = prompt.inputs["input_ids"]
    assert prompt.tokenizer.decode(ids) == "In the beginning"


def test_a_folder_without_tokenizer(folder):
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(CheckpointError, match=r"cannot be read\.\n  no file tokenizer\* is there"):
        read(folder)


def test_a_broken_tokenizer_file(folder):
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"The tokenizer of .* cannot be read") as caught:
        read(folder)
    assert "tokenizer_config.json of the model" in caught.value.todo


def test_an_empty_prompt(folder):
    with pytest.raises(ConfigError, match="The prompt '' has no tokens"):
        read(folder, "")


def set_template(folder, template):
    (folder / "chat_template.jinja").write_text(template)


def test_chat_needs_a_template_that_works(folder):
    with pytest.raises(ConfigError, match="--chat needs a chat template"):
        read(folder, chat=True)
    set_template(folder, "{{ nothing.here() }}")
    with pytest.raises(ConfigError, match=r"template cannot be used\.\n  UndefinedError"):
        read(folder, chat=True)
    set_template(folder, "Q: {{ messages[0].content }} A:")
    prompt = read(folder, "Hi", chat=True)
    assert prompt.tokenizer.decode(prompt.inputs["input_ids"][0]) == "Q: Hi A:"


def test_tokens_of_another_model(folder):
    prompt = read(folder)

    class Model:
        def __init__(self, rows):
            self.get_input_embeddings = lambda: torch.nn.Embedding(rows, 4)

    highest = int(prompt.inputs["input_ids"].max())
    prompt.require_fit(Model(highest + 1))
    with pytest.raises(CheckpointError, match=f"the embedding has {highest} rows"):
        prompt.require_fit(Model(highest))


def test_text_beyond_the_positions_is_told(folder):
    prompt = read(folder)
    tokens = prompt.inputs["input_ids"].shape[1]

    class Model:
        class config:
            max_position_embeddings = tokens + 5

            def get_text_config():
                return Model.config

    assert prompt.too_long(Model, 5) == ""
    assert prompt.too_long(Model, 6).startswith(
        f"{tokens} tokens of the prompt and up to 6 new ones are more than the {tokens + 5} pos"
    )
    del Model.config.max_position_embeddings  # a model without positions
    assert prompt.too_long(Model, 10**9) == ""
