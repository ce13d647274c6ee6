"""An OpenAI-compatible endpoint on the embedded engine; imports no torch: the engine is in a process of its own.

- api_errors: what a caller gets wrong, in OpenAI's shape
- asked: the body of a request, checked
- vocabulary: text to tokens and back in this process
- output_text: an answer's text, token by token, up to its stop strings
- chat_template: messages to a prompt
- engine_thread: the engine's load, and who waits for which tokens
- served_model: the model's name, its engine, and requests made ready for it
- answering: one request's prompts in the engine, and what comes of them
- completions, chat: the two shapes of an answer
- streaming: pieces of an answer as server-sent events
- tokens: tokenize and detokenize
- metrics: figures under vLLM's names
- app: the routes
- running: from a port to the end
- choice: which settings are served, and where they come from
- device_settings: clocks and power limits while it serves
"""
