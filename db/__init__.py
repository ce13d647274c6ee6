"""Keep what the tuner produced: the only store. SQLite by default, PostgreSQL by URL.

- errors: what can go wrong, each with its remedy
- database: URL, transactions, translation of driver errors
- tables: mapped classes, named constraints, indexes
- codec: dataclasses to JSON and back, driven by their type hints
- records: row <-> record, nowhere else
- job: the records Job and Claim
- leases: proving a claim, and what becomes of the trials of a dead one
- jobs: create, claim, heartbeat, finish, release, cancel
- schedule, schedules: the records Schedule and Night; create, find, change, pause, delete
- nights: decide each due time once, and what is left of it later
- imports: result files of other benchmark tools
- deliveries: notifications: stored once, taken by one server, ended
- prune, backup: remove what is old; copy a SQLite database that is in use
- trials: start and finish, each exactly once; history and retries
- fronts: save, latest, history
- qualities: what precisions cost in quality, measured once
- reuse: what earlier jobs measured, by what it was measured under
- device: the record of a device that was seen, and whether it is set
- devices: which devices were seen, what they can do, and whether they are set
- migrate, migrations: bring the tables to this version and back
"""
