"""Registry: which plugins there are, what they offer, and what a name means on a platform."""

from quantdock.registry.choice import MethodChoice, choose_method, settle_choices
from quantdock.registry.current import failures, platform_entries, plugins
from quantdock.registry.lookup import ResolvedMethod, get_quantization_config, resolve_method
from quantdock.registry.name_status import NameStatus, name_status
from quantdock.registry.name_table import NameRow, method_names
from quantdock.registry.offers import dispatch_for
from quantdock.registry.platforms import get_platform, platform_for_device
from quantdock.registry.plugin import Failure, Plugin

__all__ = [
    "Failure",
    "MethodChoice",
    "NameRow",
    "NameStatus",
    "Plugin",
    "ResolvedMethod",
    "choose_method",
    "dispatch_for",
    "failures",
    "get_platform",
    "get_quantization_config",
    "method_names",
    "name_status",
    "platform_entries",
    "platform_for_device",
    "plugins",
    "resolve_method",
    "settle_choices",
]
