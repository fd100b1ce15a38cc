"""The command line: one file a command, each with HELP, add_arguments(parser) and run(args). Nothing imports it.

`fastget --help` imports every one of them, and a misspelt option should be answered at once: so what loads torch is
imported by the functions that run, never at the head of a file.
"""
