"""``python -m sharedkernel.relay -f CONNECTION_FILE``: what the kernelspec starts."""

import sys

from sharedkernel.relay.app import main

if __name__ == "__main__":
    sys.exit(main())
