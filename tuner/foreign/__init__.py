"""Result files of other benchmark tools, read as records in our terms. Pure; the seam is `tuner.foreign_results`.

- errors: what is wrong with such a file
- result: one result of such a file: its load, its counts, its latencies; never its energy
- fields: one object of a file, read field by field
- samples: latencies out of samples
- request_arrays: the arrays, one entry a request, that vLLM's and SGLang's clients write
- vllm_bench: `vllm bench serve`
- sglang_bench: `sglang.bench_serving`
- guidellm: guidellm's benchmarks.json
- aiperf, aiperf_records: AIPerf's and GenAI-Perf's summaries, and AIPerf's records of requests
- loadgen: MLPerf LoadGen's mlperf_log_summary.txt
"""
