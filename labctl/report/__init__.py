"""Show what was found, for people and programs: the terminal table, the HTML page, the JSON."""
