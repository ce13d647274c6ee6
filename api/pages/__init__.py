"""The web view: server-rendered pages, one module each."""
