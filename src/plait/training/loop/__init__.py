"""``fit``: one run, its states, its data, what it saves and reports."""
