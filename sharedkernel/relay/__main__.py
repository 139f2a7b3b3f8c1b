"""``python -m sharedkernel.relay -f CONNECTION_FILE``: what the kernelspec starts."""

import sys

from sharedkernel.relay.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
