"""Servers that others wrote, driven and measured from outside: vLLM, SGLang, TensorRT-LLM, Dynamo, llama.cpp, any URL.

The load client, from the wire up (docs/clients.md):

- `address` a server's URL; `connections` HTTP/1.1 connections that hand on the bytes of an answer as they come
- `sse` bytes to events
- `answer` events to a request's record; `tokens` how many tokens came when
- `exchange` one request on its way
- `arrivals` which request is due when
- `dialect` what a server of one kind wants to be asked
- `overhead` what a load cost the client, and when that spoils it
- `load_run` one load in a thread with an event loop; `client` what everybody else sees of all this

A server as an engine: `profile` says how the operator starts one, an `adapter` for each kind turns settings into its
words, `process` keeps it, `metrics` reads its counters, `server_engine` puts them and the client together.
"""
