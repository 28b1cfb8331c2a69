"""``python -m duologue.server``."""

import sys

from duologue.server.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
