"""What is to run: networks as graphs, and the jobs that lowering makes of them."""
