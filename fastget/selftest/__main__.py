"""`python -m fastget.selftest` is the command `fastget selftest`."""

import sys

from fastget.commands.main import main

if __name__ == "__main__":
    sys.exit(main(["selftest", *sys.argv[1:]]))
