"""Pool runs of many hosts, and judge a fleet."""
