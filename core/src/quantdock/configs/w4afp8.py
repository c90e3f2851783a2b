"""w4afp8: fp8 in blocks; experts in int4 by groups, their activations in fp8 by a stored scale.

>>> config = W4AFp8Config.from_config({"quant_method": "w4afp8"})
>>> expert = LayerFacts(prefix="model.layers.3.mlp.experts.0.w1", kind="experts")
>>> str(config.scheme_for(expert).scheme)
'int4[1x128] x fp8_e4m3[*x*]'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quantdock.config import QuantizationConfig
from quantdock.configs.fields import Fields
from quantdock.configs.fp4_experts import PackedExpertsConfig
from quantdock.configs.fp8 import Fp8Config
from quantdock.configs.fp8_tensors import input_scale_slot, scale_slot
from quantdock.configs.mixed_checkpoint import IntegerLayers
from quantdock.configs.stored import INPUT_SCALES
from quantdock.errors import ConfigError
from quantdock.formats import QuantSpec
from quantdock.kernel import Kernel
from quantdock.methods.slot import Slot
from quantdock.platform import Platform
from quantdock.schemes import LayerFacts, Scheme

if TYPE_CHECKING:
    from torch import Tensor

    from quantdock.numerics.canonical import CanonicalWeight

_TILE = [128, 128]  # of linear layers; such files do not state it
_BY_NAME = "quantized_layers"
_MIXED = "mixed_precision"  # what ModelOpt's side file says of such files
_WEIGHT, _SCALE, _INPUT_SCALE = "weight", "weight_scale_inv", INPUT_SCALES[0]


class W4AFp8Experts(IntegerLayers):
    """``weight`` with two codes a byte, ``weight_scale_inv`` by groups, ``input_scale``.

    Codes are in two's complement, the even column in the low half. Both scales multiply.
    """

    name = "w4afp8"

    def weight_shape(self, scheme: Scheme, facts: LayerFacts) -> tuple[int, ...]:
        """Return the shape (N, K) that the packed codes stand for."""
        shape = super().weight_shape(scheme, facts)
        return (*shape[:-1], 2 * shape[-1]) if shape else ()

    def slots(self, scheme: Scheme, n: int, k: int, facts: LayerFacts) -> tuple[Slot, ...]:
        """Return the slots of one shard [n, k]."""
        codes = Slot(name=_WEIGHT, shapes=((n, -(-k // 2)),), dtypes=("int8", "uint8"), col_tile=2)
        return codes, scale_slot(scheme.weight, n, k), input_scale_slot()

    def decode(
        self, scheme: Scheme, stored: Sequence[Mapping[str, Tensor]], facts: LayerFacts
    ) -> CanonicalWeight:
        """Return the canonical weight, one segment a shard."""
        from quantdock.numerics.byte_packing import sign_extend, unpack_bytes
        from quantdock.numerics.canonical import CanonicalWeight, Segment, join
        from quantdock.numerics.scales import decode_scale

        parts = []
        for tensors in stored:
            codes = sign_extend(unpack_bytes(tensors[_WEIGHT], bits=4), bits=4)
            scale = decode_scale(tensors[_SCALE]).reshape(scheme.weight.grid(*codes.shape))
            segment = Segment(spec=scheme.weight, codes=codes, scale=scale)
            input_scale = decode_scale(tensors[_INPUT_SCALE]).reshape(1)
            parts.append(CanonicalWeight(segments=(segment,), input_scale=input_scale))
        return join(parts)


class W4AFp8Config(PackedExpertsConfig):
    """fp8 in blocks of 128 x 128; experts in int4, unless the file stores them in fp8 or plain."""

    name = "w4afp8"
    linear = Fp8Config
    experts = Scheme(
        weight=QuantSpec(element="int4", rows=1, cols=128),
        activation=QuantSpec(element="fp8_e4m3"),
    )
    reader = W4AFp8Experts

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> QuantizationConfig:
        """Return the config of the linear layers.

        Raises:
            ConfigError: a field has an impossible value, or the block is of another algorithm.
        """
        fields = Fields(config, cls.name)
        fields.choice("quant_algo", {_MIXED: None}, None)
        _require_int4(fields.get(_BY_NAME))
        return super().read({"weight_block_size": _TILE, **config})

    @classmethod
    def claim(
        cls,
        config: Mapping[str, Any],
        user: str | None,
        platform: Platform,
        kernels: Sequence[Kernel] = (),
    ) -> str | None:
        """Take over files that say that they are mixed and nothing of which layer is what."""
        is_theirs = str(config.get("quant_method")).lower() == "modelopt"
        is_mixed = str(config.get("quant_algo")).lower() == _MIXED
        says_more = config.keys() & {"quantized_layers", "config_groups", "moe_quant_algo"}
        if not is_theirs or not is_mixed or says_more:
            return None
        return "quant_algo is MIXED_PRECISION, and no layer is named"


def _require_int4(named: object) -> None:
    """Raise if layers are named with their algorithms, and none of these is that of such experts.

    Raises:
        ConfigError: so it is.
    """
    blocks = named.values() if isinstance(named, Mapping) else ()
    told = {str(block.get("quant_algo")) for block in blocks if isinstance(block, Mapping)}
    if told and not any(word.upper().startswith("W4A8") for word in told):
        raise ConfigError(
            f"w4afp8 was asked for, and the checkpoint has no layers in W4A8: {_BY_NAME} says "
            f"{', '.join(sorted(told))}.",
            why=["w4afp8 stands for experts in int4 whose activations are fp8"],
            todo="Leave the option out, or ask for 'modelopt', which reads what the file says.",
            field=_BY_NAME,
        )
