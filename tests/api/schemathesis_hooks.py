"""What Schemathesis cannot know by itself: how files of JSON lines are written."""

from __future__ import annotations

import schemathesis

schemathesis.serializer.alias("application/x-ndjson", "text/plain")
