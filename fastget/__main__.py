"""`python -m fastget` is the command `fastget`."""

import sys

from fastget.cli import main

if __name__ == "__main__":
    sys.exit(main())
