"""Networks that the benchmarks capture with torch, written from their papers.

Every factory takes ``batch`` and returns a module and its inputs. A module takes images and labels,
or tokens, and returns the loss, so that ``loadmaster place
torch:benchmarks.networks.resnet:resnet200 --training --batch 512`` places a whole training step.
"""
