"""Every way in: HTTP, page, command line.

- errors: what a person can get wrong, and how it is told
- settings: WATTFRONT_* variables, read once
- job_schemas, schemas: a job's fields as they come in; JSON out
- jobfile: a YAML job file or flags as a TuneRequest, with line numbers
- complaints, submit: what is wrong with a job's fields; a job that comes over HTTP
- records: stored records as their public JSON
- stores: one database with all its stores
- prepare: a request checked against this machine: device, control, knobs, model
- reuse: what a job takes over from earlier ones, and the points that it begins with
- owners: who holds a job, and whether that process is gone
- heartbeat: keep a claim alive while its job runs
- worker, recorder: claim a job, run its trials; measure or take over each, and store it
- doctor: what this machine can do
- front_words: what must be said of a front's intervals and ties
- quality_words: what a precision costs, and what that was told from
- explanation, explanation_schemas, explanation_words: what a job found, as JSON and as sentences
- plot, page, static, templates: the web view
- routes, app: the HTTP service
- flags: command-line options as job-file fields
- console: what the command line prints
- watch: look at a device again and again, and show it
- measure, launcher: the energy of any command
- meter_words: readings and what speaks against them, in words
- explain_commands, meter_commands, guard_commands, calibrate_commands: explain, watch and measure, guard and restore,
  calibrate
- terminal: a job run or followed in a terminal
- up: service and worker on one machine, supervised
- cli: the command line, and the only composition root
"""
