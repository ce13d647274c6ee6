"""Our serving engine in PyTorch: continuous batching with chunked prefill over a paged KV cache.

Reading order is import order. The first group is free of torch and tested in microseconds.

- families, fields, layer_config, rope_config, config: the shape of a model, read from a config.json and checked
- sequence: a request in the engine, the only mutable state
- blocks: which KV-cache blocks are free
- scheduler: which tokens run in a step: decodes first, then prefill chunks
- stopping: stop strings over token borders
- gguf_config, gguf_tokenizer, gguf_file, models: from a model's name to a checked folder of files

- tokenizer: text to token ids and back, one token at a time
- rope, norm, linears, mlp, experts, weights, loader: the parts of a layer, and a checkpoint as these
- decoder: tokens to hidden states
- kv_cache, attention: keys and values of running sequences, and reading them
- sampling: logits to token ids
- runner: a batch to logits
- scoring: score a given text, and its divergence from another precision's pass
- loop: the step: schedule, run, sample, finish
"""
