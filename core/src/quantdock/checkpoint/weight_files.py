"""Which files of a folder hold its weights: one table of what may stand there, best first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from quantdock.errors import CheckpointError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
NOTHING = "nothing"
_OTHER_NAMES = ("consolidated",)  # files that repeat the weights under another naming

# Kinds of weight file that are not read: pattern, what it is, whether it is to come, what to do.
_UNREAD = (
    (
        "*.gguf",
        "GGUF",
        True,
        "Until then decode it in transformers, with from_pretrained(FOLDER, gguf_file=NAME, "
        "quantization_config=GgufConfig(dequantize=True)) and save_pretrained(OTHER), and load "
        "that folder; it can be quantized at load.",
    ),
    (
        "consolidated*.safetensors",
        "Mistral-native",
        True,
        "Use the files of the same model in the transformers layout until then.",
    ),
    *(
        (
            pattern,
            "pickle",
            False,
            "Pickle can run code when it is opened. Convert it once, in a place where that does "
            "no harm: load it with transformers and call save_pretrained(FOLDER), which writes "
            "safetensors.",
        )
        for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFiles:
    """The index, if there is one, and the safetensors files that may hold weights."""

    folder: Path
    index: Path | None
    shards: tuple[Path, ...]


def find_weight_files(folder: Path) -> WeightFiles:
    """Return the weight files of ``folder``; an index comes first, then model.safetensors.

    Raises:
        CheckpointError: no safetensors file, and what stands there instead.
    """
    found = tuple(
        file
        for file in sorted(folder.glob("*.safetensors"))
        if not file.name.startswith(_OTHER_NAMES)
    )
    indexes = sorted(folder.glob("*.safetensors.index.json"))
    index = folder / INDEX
    if index.exists() or len(indexes) == 1:
        return WeightFiles(
            folder=folder, index=index if index.exists() else indexes[0], shards=found
        )
    if (single := folder / SINGLE) in found:
        found = (single,)
    elif not found or not (folder / "config.json").is_file():
        _refuse_others(folder)
    if not found:
        raise _no_weights(folder)
    return WeightFiles(folder=folder, index=None, shards=found)


def inside(folder: Path, name: str, index: Path) -> Path:
    """Return the file ``name`` of ``folder``, which ``index`` asks for.

    Links may lead into the folder itself, or into the blob store of a hub cache
    (``snapshots/REVISION`` beside ``blobs``).

    Raises:
        CheckpointError: the name or its link leads out of the folder.
    """
    home = folder.resolve()
    allowed = [home]
    if folder.absolute().parent.name == "snapshots" or home.parent.name == "snapshots":
        allowed.append(home.parent.parent / "blobs")
    relative = Path(name.replace("\0", "?"))  # which no system allows in a path
    real = (home / relative).resolve()
    if (
        relative.is_absolute()
        or ".." in relative.parts
        or "\\" in name
        or "\0" in name
        or not any(real.is_relative_to(place) for place in allowed)
    ):
        raise CheckpointError(
            f"{index} points outside the checkpoint folder.",
            why=[f"it names {name!r}, which is {real}"],
            todo="Do not trust it; if the file belongs to the model, copy it into the folder.",
            path=index,
        )
    return folder / relative


def _refuse_others(folder: Path) -> None:
    """Raise if weights of a kind that is not read stand in ``folder``."""
    for pattern, kind, to_come, todo in _UNREAD:
        if files := sorted(folder.glob(pattern)):
            known = "known, not yet" if to_come else "refused"
            raise CheckpointError(
                f"{folder} holds {kind} weights ({known}).",
                why=[f"found {files[0].name}, and neither {SINGLE} nor {INDEX}"],
                todo=todo,
                path=files[0],
                holds=kind,
                not_yet=kind.lower() if to_come else "",
            )


def _no_weights(folder: Path) -> CheckpointError:
    # A hub cache keeps a model in snapshots/REVISION, a trainer its stages in checkpoint-STEP.
    inner = sorted({*folder.glob("*/config.json"), *folder.glob("snapshots/*/config.json")})
    named = f", such as {inner[0].parent}" if inner else ""
    return CheckpointError(
        f"{folder} holds no weights.",
        why=[f"neither {INDEX} nor {SINGLE} nor another *.safetensors file is there"],
        todo=f"Download the weights into it, or name the folder that holds them{named}.",
        path=folder,
        holds=NOTHING,
    )
