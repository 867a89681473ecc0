"""The command line: one file per command. Each imports what it runs only when it runs, so that --help is instant."""
