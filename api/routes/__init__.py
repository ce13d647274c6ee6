"""One module per resource of the HTTP service.

- stores_of: the stores of the running application
- query_types: what several routes take as a query parameter
- jobs: jobs and their trials
- fronts: a job's front, the latest of many jobs, several side by side
- events: what happens to a job, as a stream
- metrics: figures for Prometheus
- exports: a job's point as another program takes it
- recommendations: the stored point to use under given limits
- schedules: jobs that repeat, what is due next, what became of each night
- devices, engines, models: what jobs ran on, and what they may name
- workloads: traces and prompt files that callers upload
- imports: results of other benchmark tools
- submissions: new jobs, and the end of one
- audit: who did what
- deliveries: notifications and how far they are
- login: the form that takes a key for a browser
- health: whether the service and its database are up
"""
