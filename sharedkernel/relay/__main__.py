"""``python -m sharedkernel.relay -f CONNECTION_FILE``: what kernelspecs start."""

import sys

from sharedkernel.client.relay.app import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
