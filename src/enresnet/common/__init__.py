"""What every room stands on: checks, files, progress, randomness, tables; nothing of ours below."""
