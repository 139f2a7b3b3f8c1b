"""What depends on the kind of a session's device."""

from __future__ import annotations

import torch

from sharedkernel.device_memory.mode import DeviceMemoryMode
from sharedkernel.ipc.fd_client import DescriptorClient
from sharedkernel.ipc.shared_page import Page
from sharedkernel.session.device_parts import make_parts
from sharedkernel.session.gate.dispatch_mode import DeviceMode, touches_cuda


class OnGpu:
    """Stands for a tensor on a GPU, of which a CPU build of torch has none."""

    is_cuda = True


def test_an_operation_is_the_gpus_if_it_has_or_makes_a_tensor_there() -> None:
    """Wherever in its arguments: fused optimizers have lists of them."""
    on_host = torch.zeros(1)
    gpu = OnGpu()
    for arguments, keywords in (
        ((gpu,), {}),
        ((on_host, gpu), {}),
        (([on_host, gpu],), {}),
        ((), {"out": gpu}),
        (([3],), {"device": torch.device("cuda", 0)}),
    ):
        assert touches_cuda(arguments, keywords)
    for arguments, keywords in (
        ((on_host, 1.0, None), {}),
        (([on_host],), {"device": torch.device("cpu")}),
        ((), {"dtype": torch.float32, "device": None}),
    ):
        assert not touches_cuda(arguments, keywords)


def test_on_a_gpu_operations_of_the_processor_do_not_pass_the_gate() -> None:
    """Data loading and pandas are nobody's turn; on the host every operation is the device's."""
    channel = DescriptorClient("executor.sock")
    for kind, expected in (("cuda", 0), ("host", 2)):
        concerns = make_parts(kind, Page.create("test"), DeviceMemoryMode.PLAIN, channel).concerns
        noticed: list[int] = []
        mode = DeviceMode(lambda noticed=noticed: noticed.append(1), concerns=concerns)  # type: ignore[misc]
        mode.put_in()
        torch.ones(2).add_(1)
        mode.take_out()
        assert len(noticed) == expected
