"""The analytical model of arrays, buffers and links behind the job table and the model
``dataflow``."""
