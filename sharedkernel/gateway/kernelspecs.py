"""The one kernel that the gateway offers, and no files: nothing is read from disk, nothing else can be started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager, NoSuchKernel
from jupyter_server.services.contents.manager import AsyncContentsManager

from sharedkernel import relay
from sharedkernel.relay.gateway import KERNEL_NAME
from sharedkernel.relay.install import DISPLAY_NAME

#: the kernel's logos, shared with what `sharedkernel install` writes
_RESOURCES = Path(relay.__path__[0]) / "kernelspec"


class OneKernelSpec(KernelSpecManager):
    """Knows ``shared-gpu`` only."""

    def find_kernel_specs(self) -> dict[str, str]:
        """Return the kernel's name and where its logos are."""
        return {KERNEL_NAME: str(_RESOURCES)}

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """Return the kernelspec.

        Raises
        ------
        NoSuchKernel
            For any other name.
        """
        if kernel_name != KERNEL_NAME:
            raise NoSuchKernel(kernel_name)
        return KernelSpec(
            # Nothing is run from here: the executor starts sessions.
            argv=[],
            display_name=DISPLAY_NAME,
            language="python",
            interrupt_mode="signal",
            resource_dir=str(_RESOURCES),
            metadata={},
        )

    def get_all_specs(self) -> dict[str, Any]:
        """Return the kernelspec as the API shows it."""
        spec = self.get_kernel_spec(KERNEL_NAME)
        return {KERNEL_NAME: {"resource_dir": spec.resource_dir, "spec": spec.to_dict()}}


class NoContents(AsyncContentsManager):
    """Serves no files: notebooks stay where their users are."""

    def get_extra_handlers(self) -> list[Any]:
        """Return none (the base class would serve ``/files``)."""
        return []
