"""What serves in a process of its own to be compared: run by `serve`, each by an interpreter that has its packages.

Nothing here imports this project but `embedded_peer`, and no peer imports another.
"""
