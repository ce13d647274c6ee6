"""What a person can get wrong at the edge; each message is a sentence with field, value and remedy."""

from __future__ import annotations

from db.errors import StoreError
from engine.errors import CheckpointError, InvalidSettings, UnknownModel
from probes.errors import ProbeError
from tuner.errors import InvalidRequest


class UsageError(Exception):
    """Correct what the message names."""


class JobFileError(UsageError):
    """Correct the line that the message names."""


#: What is the asker's to correct: the command line ends with exit code 2, HTTP answers 4xx.
BAD_INPUT = (UsageError, InvalidRequest, UnknownModel, CheckpointError, InvalidSettings, ProbeError, StoreError)
