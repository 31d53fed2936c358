"""``fit``: one run, its states, its data, what it saves and reports, and what its processes agree about."""
