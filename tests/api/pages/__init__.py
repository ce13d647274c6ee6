"""Tests of api/pages, and of the pages in a browser."""
