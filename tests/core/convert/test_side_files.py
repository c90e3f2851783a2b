"""Which files go along: the tokenizer's and their like, never weights of the model as it was."""

from __future__ import annotations

from quantdock.convert.side_files import copy_side_files, find_side_files


def test_small_files_go_along_and_weights_do_not(plain, tmp_path):
    for name in ("chat_template.jinja", "pytorch_model.bin", "model.gguf", ".gitattributes"):
        (plain / name).write_bytes(name.encode())
    (plain / "original").mkdir()
    (plain / "linked.txt").symlink_to(plain / "chat_template.jinja")
    files = find_side_files(plain)
    assert [path.name for path in files.copied] == [
        "chat_template.jinja",
        "linked.txt",
        "tokenizer.json",
    ]
    assert files.left == ("model.gguf", "original/", "pytorch_model.bin")
    assert files.num_bytes == 19 + 19 + (plain / "tokenizer.json").stat().st_size
    target = tmp_path / "out"
    target.mkdir()
    copy_side_files(files, target)
    assert not (target / "linked.txt").is_symlink()
    assert (target / "linked.txt").read_bytes() == b"chat_template.jinja"
    assert "ünï" in (target / "tokenizer.json").read_text(encoding="utf-8")


def test_files_can_be_dropped_by_name(plain):
    (plain / "hf_quant_config.json").write_text("{}")
    names = [path.name for path in find_side_files(plain, {"hf_quant_config.json"}).copied]
    assert names == ["tokenizer.json"]
