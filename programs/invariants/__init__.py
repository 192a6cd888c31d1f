"""What must hold in every simulated run, judged by what crosses between hosts and by what is on disk."""
