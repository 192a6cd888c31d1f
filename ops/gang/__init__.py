"""One island of several processes: how they meet, and the orders by which all of them call the same functions."""
