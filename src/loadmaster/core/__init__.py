"""What every package stands on: errors, units, files, and small pieces that know nothing of
networks."""
