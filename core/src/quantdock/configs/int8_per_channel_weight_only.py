"""int8_per_channel_weight_only: a 16-bit checkpoint, its weights rounded to int8 while it loads."""

from __future__ import annotations

from quantdock.configs.online import OnlineConfig
from quantdock.schemes.shorthands import SHORTHANDS


class Int8PerChannelWeightOnlyConfig(OnlineConfig):
    """One scale a weight row; activations stay as given."""

    name = "int8_per_channel_weight_only"
    online_schemes = SHORTHANDS["int8_per_channel_weight_only"]
