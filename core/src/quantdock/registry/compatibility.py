"""Which method a user may ask for on which checkpoint: one table, user x file.

Names that are equal need no row, and neither does ``none``. A row says whose word counts: the
user's method then reads the file, or the file's method does.
"""

from __future__ import annotations

from dataclasses import dataclass

from quantdock.registry.spelling import spell


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One combination that works; ``takes`` is "user" or "file", ``because`` is for the plan."""

    user: str
    file: str
    takes: str
    because: str


def _rows(user: str, files: str, takes: str, because: str) -> tuple[Pair, ...]:
    return tuple(Pair(user=user, file=file, takes=takes, because=because) for file in files.split())


_KINDS = "modelopt_fp8 modelopt_fp4 modelopt_mixed modelopt_mxfp8"
_FAMILY = "modelopt is the family's name; the file says which of its schemes"
_MXFP8 = "both store e4m3 with e8m0 scales"
_REPACK = "the same weights, in a layout of their own"
_EXPORTED = "AutoRound writes such files too; the file says which dialect"

PAIRS: tuple[Pair, ...] = (
    *_rows("modelopt", _KINDS, "file", _FAMILY),
    *_rows("modelopt_fp8", "modelopt", "user", _FAMILY),
    *_rows("modelopt_fp4", "modelopt", "user", _FAMILY),
    *_rows("modelopt_mixed", "modelopt", "user", _FAMILY),
    *_rows("modelopt_mxfp8", "modelopt", "user", _FAMILY),
    *_rows("modelopt_mxfp8", "mxfp8", "file", _MXFP8),
    *_rows("mxfp8", "modelopt_mxfp8", "file", _MXFP8),
    *_rows("petit_nvfp4", "modelopt modelopt_fp4", "user", "the same NVFP4 weights"),
    *_rows(
        "nvfp4_online", "fp8 modelopt modelopt_fp8", "user", "experts are quantized again at load"
    ),
    *_rows("minimax_m3_nvfp4", "mxfp8", "user", "experts of such files are NVFP4"),
    *_rows("minimax_m3_nvfp4", "modelopt modelopt_mixed", "file", "the file names each layer"),
    *_rows("deepseek_v4_fp8", "fp8", "user", "experts of such files are mxfp4"),
    *_rows("w4afp8", "fp8 modelopt", "user", "experts of such files are int4"),
    *_rows("w8a8_fp8", "compressed-tensors", "user", "the same per-row fp8 tensors"),
    *_rows("w8a8_int8", "compressed-tensors", "user", "the same per-row int8 tensors"),
    *_rows("auto-round", "gptq awq compressed-tensors", "file", _EXPORTED),
    *_rows("auto-round-int8", "compressed-tensors auto-round", "user", "the same int8 tensors"),
    *_rows("gptq_marlin", "gptq", "user", _REPACK),
    *_rows("awq_marlin", "awq", "user", _REPACK),
    *_rows("moe_wna16", "gptq awq", "user", "the same files by another name"),
    *_rows("humming", "gptq awq fp8 compressed-tensors modelopt", "user", _REPACK),
    *_rows("quark_mxfp4", "quark", "user", "quark's own mxfp4"),
    *_rows("quark_int4fp8_moe", "quark", "file", "quark's files say which layers are int4 in fp8"),
)

_TABLE = {(spell(pair.user), spell(pair.file)): pair for pair in PAIRS}


def find_pair(user: str, file: str) -> Pair | None:
    """Return the row for the user's method on the file's, or None where they cannot combine."""
    return _TABLE.get((spell(user), spell(file)))


def readers_of(file: str) -> tuple[str, ...]:
    """Return the methods, besides its own, that may read a file of ``file`` where a user asks.

    Rows in which the file's method counts are left out: asking for those changes nothing.
    """
    rows = (pair for pair in PAIRS if spell(pair.file) == spell(file) and pair.takes == "user")
    return tuple(pair.user for pair in rows)
