"""The name by which kernelspecs start a relay, whatever version wrote them; the relay is `client/relay/`."""
