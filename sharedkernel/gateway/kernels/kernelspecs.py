"""The kernelspecs that the gateway offers, without any file: nothing else can be started."""

from __future__ import annotations

from typing import Any

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager, NoSuchKernel
from jupyter_server.services.contents.manager import AsyncContentsManager

from sharedkernel.jupyter.names import DISPLAY_NAME, LOGOS, environment_of, kernel_of


class SharedKernelSpecs(KernelSpecManager):
    """``shared-gpu``, and ``shared-gpu-NAME`` for each Python environment of an executor."""

    def find_kernel_specs(self) -> dict[str, str]:
        """Return the directory of logos for each kernel's name."""
        gateway: Any = self.parent
        environments = gateway.kernel_manager.executors.environments()
        return {kernel_of(environment): str(LOGOS) for environment in ("", *environments)}

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """Return a kernelspec.

        Raises
        ------
        NoSuchKernel
            For any other name.
        """
        environment = environment_of(kernel_name)
        if environment is None or kernel_name not in self.find_kernel_specs():
            raise NoSuchKernel(kernel_name)
        return KernelSpec(
            # The executor starts sessions, not this process.
            argv=[],
            display_name=f"Shared GPU ({environment})" if environment else DISPLAY_NAME,
            language="python",
            interrupt_mode="signal",
            resource_dir=str(LOGOS),
            metadata={},
        )

    def get_all_specs(self) -> dict[str, Any]:
        """Return the kernelspecs as the API shows them."""
        specs = {name: self.get_kernel_spec(name) for name in self.find_kernel_specs()}
        return {name: {"resource_dir": spec.resource_dir, "spec": spec.to_dict()} for name, spec in specs.items()}


class NoContents(AsyncContentsManager):
    """Serves no files: notebooks stay where their users are."""

    def get_extra_handlers(self) -> list[Any]:
        """Return none (the base class would serve ``/files``)."""
        return []
