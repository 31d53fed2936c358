"""Programs that outlive their process, so that the next one starts warm."""
