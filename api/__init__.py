"""Every way in: HTTP, page, command line.

- errors: what a person can get wrong, and how it is told
- settings: WATTFRONT_* variables, read once
- schemas: JSON and YAML in and out
- jobfile: a YAML job file or flags as a TuneRequest, with line numbers
- records: stored records as their public JSON
- stores: one database with all its stores
- worker: claim a job, run its trials, keep what came out
- doctor: what this machine can do
- plot, page, static, templates: the web view
- routes, app: the HTTP service
- flags: command-line options as job-file fields
- console: what the command line prints
- terminal: a job run or followed in a terminal
- up: service and worker on one machine, supervised
- cli: the command line, and the only composition root
"""
