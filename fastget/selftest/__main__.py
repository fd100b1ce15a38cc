"""`python -m fastget.selftest` is the command `fastget selftest`."""

import sys

from fastget.selftest.table import main

if __name__ == "__main__":
    sys.exit(main())
