"""Small files of a user of the program."""

BUFFERS = "id,lower,upper,size\na,0,4,600\nb,2,6,300\nc,5,9,800\n"
COSTS = """job,core,latency_s,bandwidth_bytes_per_s
a,x,0.001,1e9
a,y,0.002,1e9
b,x,0.003,2e9
b,y,0.001,2e9
c,y,0.001,0
"""
