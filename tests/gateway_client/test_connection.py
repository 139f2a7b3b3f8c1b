"""What the relay says of a gateway that does not answer."""

from __future__ import annotations

import asyncio

import pytest

from sharedkernel.gateway_client.connection import Gateway, GatewayUnreachable
from sharedkernel.gateway_client.credentials import Credentials
from sharedkernel.local_stack import free_port


def test_a_gateway_that_is_slow_is_told_from_one_that_is_not_there() -> None:
    """Where a connection was made, nobody is sent to look for the address or the network."""

    async def asked(port: int) -> str:
        gateway = Gateway(Credentials(url=f"http://127.0.0.1:{port}", token="a-token"))
        try:
            with pytest.raises(GatewayUnreachable) as unreachable:
                await gateway._fetch("POST", "/api/kernels", body="{}", seconds=1.0)
        finally:
            gateway.close()
        return str(unreachable.value)

    async def main() -> None:
        requests: list[asyncio.StreamWriter] = []  # a connection lasts as long as somebody has it
        server = await asyncio.start_server(lambda reader, writer: requests.append(writer), "127.0.0.1", 0)
        try:
            slow = await asked(server.sockets[0].getsockname()[1])
        finally:
            server.close()
        assert requests
        assert "is there but took too long to answer" in slow
        assert "no gateway answers" in await asked(free_port())
        for writer in requests:
            writer.close()

    asyncio.run(main())
