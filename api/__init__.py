"""Every way in: HTTP, page, command line.

- errors: what a person can get wrong, and how it is told
- settings: WATTFRONT_* variables, read once
- schemas: JSON and YAML in and out
- jobfile: a YAML job file or flags as a TuneRequest, with line numbers
- complaints, submit: what is wrong with a job's fields; a job that comes over HTTP
- records: stored records as their public JSON
- stores: one database with all its stores
- prepare: a request checked against this machine: device, control, knobs, model
- owners: who holds a job, and whether that process is gone
- heartbeat: keep a claim alive while its job runs
- worker: claim a job, run its trials, keep what came out
- doctor: what this machine can do
- plot, page, static, templates: the web view
- routes, app: the HTTP service
- flags: command-line options as job-file fields
- console: what the command line prints
- watch: look at a device again and again, and show it
- measure, launcher: the energy of any command
- meter_words: readings and what speaks against them, in words
- meter_commands, guard_commands, calibrate_commands: watch and measure, guard and restore, calibrate
- terminal: a job run or followed in a terminal
- up: service and worker on one machine, supervised
- cli: the command line, and the only composition root
"""
