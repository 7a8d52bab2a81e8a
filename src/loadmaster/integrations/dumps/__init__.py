"""What other memory planners decided, read from their dumps, beside what Loadmaster finds for the
same buffers."""
