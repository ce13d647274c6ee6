"""A stored point as other programs take it, one module a form.

- recipe: the point, what it was measured on, and what must be said of it
- command: shell commands with comments, quoted
- vllm, sglang, trtllm: how to start that engine so
- dynamo: a DynamoGraphDeployment for Kubernetes, with the power cap
- systemd: a unit that sets clocks and power limit, and puts them back
- json_form, csv_form: the point for programs and spreadsheets
- mlperf: files of an MLPerf Endpoints bundle, as a draft
- forms: all of them by name
"""
