"""`python -m fastget` is the command `fastget`."""

import sys

from fastget.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
