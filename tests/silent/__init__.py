"""What once passed in silence, as a user meets it: by commands and files alone, so that any revision can be asked.

`python -m tests.before REV` runs these on another revision (see there): nothing here may import what is new.
"""
