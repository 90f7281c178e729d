"""What is particular to Pacemaker: scores, who is furthest, and the news of a broker's death."""
