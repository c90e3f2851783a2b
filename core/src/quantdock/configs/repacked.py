"""gptq_marlin, awq_marlin: GPTQ and AWQ files run by a kernel that repacks codes at load.

They take over a file that says ``gptq`` or ``awq`` where such a kernel is offered for its scheme.
Layers that it cannot take then run as they would have. Asked for by name, they are a requirement.

>>> from quantdock.platform import Platform
>>> from quantdock.schemes import SchemeSet, SpecSet
>>> fused = Kernel(name="fused", target="demo:Fused", repacks=True,
...                accepts=SchemeSet(weight=SpecSet(elements=frozenset({"int4"}))))
>>> device = Platform(name="demo", arch="one", device="demo")
>>> block = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}
>>> GPTQMarlinConfig.claim(block, None, device, [fused])
'fused repacks int4[1x128]'
>>> GPTQMarlinConfig.claim({**block, "bits": 3}, None, device, [fused]) is None
True
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from quantdock.configs.awq import AWQConfig
from quantdock.configs.gptq import GPTQConfig
from quantdock.configs.group_setting import GroupSetting
from quantdock.configs.integer_checkpoint import IntegerCheckpointConfig
from quantdock.dispatch import Dispatch
from quantdock.errors import ConfigError, NoKernelError
from quantdock.kernel import Kernel, Problem, Rejection
from quantdock.platform import Platform
from quantdock.schemes import Scheme


class RepackedConfig(IntegerCheckpointConfig):
    """What the two have in common; ``takes`` is the method whose files it takes over."""

    takes: ClassVar[str]
    repacked = True
    setting: GroupSetting

    @classmethod
    def claim(
        cls,
        config: Mapping[str, Any],
        user: str | None,
        platform: Platform,
        kernels: Sequence[Kernel] = (),
    ) -> str | None:
        """Return which kernel repacks what the file stores, or None if none does."""
        if str(config.get("quant_method")).lower() != cls.takes:
            return None
        try:
            problem = cls.from_config(config).repacking_problem
        except ConfigError:
            return None  # whoever reads the file says what is wrong with it
        for kernel in kernels:
            if kernel.repacks and not kernel.why_not(problem, platform):
                return f"{kernel.name} repacks {problem.scheme}"
        return None

    @classmethod
    def runs_with(cls, kernels: Sequence[Kernel]) -> bool:
        """Return whether one of ``kernels`` repacks anything."""
        return any(kernel.repacks for kernel in kernels)

    @property
    def repacking_problem(self) -> Problem:
        """Return what the layers are that no override names, of any shape."""
        scheme = self.executed(Scheme(weight=self.setting.spec))
        return Problem(scheme=scheme, repacked=self.repacked)

    def bind(self, dispatch: Dispatch) -> Self:
        """Return self, tied to a platform, its kernels and the user's policy.

        Raises:
            NoKernelError: a kernel that repacks is required and none takes what the file stores.
        """
        if self.repacked:
            self._require_kernel(dispatch)
        return super().bind(dispatch)

    def _require_kernel(self, dispatch: Dispatch) -> None:
        problem, platform = self.repacking_problem, dispatch.platform
        rejected = [
            Rejection(kernel=kernel.name, reasons=kernel.why_not(problem, platform))
            for kernel in dispatch.kernels
            if kernel.repacks
        ]
        if any(not candidate.reasons for candidate in rejected):
            return
        offered = [f"{r.kernel}: {'; '.join(r.reasons)}" for r in rejected]
        raise NoKernelError(
            f"{self.name} was asked for, and no kernel on {platform} repacks {problem.scheme}.",
            why=[
                f"the file says {self._stated}",
                *(offered or [f"no kernel on {platform} repacks anything"]),
            ],
            todo=f"Leave the option out, or ask for {self.takes}, to run it with other kernels.",
            problem=problem,
            rejected=tuple(rejected),
        )


class GPTQMarlinConfig(RepackedConfig, GPTQConfig):
    """A GPTQ checkpoint, run by a kernel that repacks its codes."""

    name = "gptq_marlin"
    takes = "gptq"


class AWQMarlinConfig(RepackedConfig, AWQConfig):
    """An AWQ checkpoint, run by a kernel that repacks its codes."""

    name = "awq_marlin"
    takes = "awq"
