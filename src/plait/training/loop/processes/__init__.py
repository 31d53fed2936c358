"""What the processes of one run of ``fit`` agree about: its end, the first error, and copies of its objects."""
