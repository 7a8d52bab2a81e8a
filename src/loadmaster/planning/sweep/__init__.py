"""Plans of the same networks on many machines."""
