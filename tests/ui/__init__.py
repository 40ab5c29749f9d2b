"""The page for looking at a log: its API, and the page itself in a real browser."""
