"""README.md, CONTRIBUTING.md and docs/: what they say is run, and the site is built."""
