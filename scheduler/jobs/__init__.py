"""Jobs from their submission to their end: their states, queues, dependencies and outputs."""
