"""A campaign of malformed inputs, kills and faults against the whole package.

``make torture`` runs it; docs/reliability.md says what it found and what is promised.
"""
