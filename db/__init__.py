"""Keep what the tuner produced: the only store. SQLite by default, PostgreSQL by URL.

- errors: what can go wrong, each with its remedy
- database: URL, transactions, translation of driver errors
- tables: mapped classes, named constraints, indexes
- codec: dataclasses to JSON and back, driven by their type hints
- records: row <-> record, nowhere else
- job: the records Job and Claim
- leases: proving a claim, and what becomes of the trials of a dead one
- jobs: create, claim, heartbeat, finish, release, cancel
- trials: start and finish, each exactly once; history and retries
- fronts: save, latest, history
- devices: which devices were seen, and what they can do
- migrate, migrations: bring the tables to this version and back
"""
