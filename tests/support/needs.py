"""Reasons to skip a test that hold on a machine where everything is installed."""

SANITIZER = "the address sanitizer keeps memory of its own"
GPU = "no GPU can be used here"
MOUNT = "no file system can be mounted here"
PUBLIC_INSTANCES = "the public instances are not at hand"
TOOLCHAIN = "this toolchain is large: .ci/toolchains installs it and runs these tests"
MAY_BE_MISSING = (GPU, MOUNT, PUBLIC_INSTANCES, SANITIZER, TOOLCHAIN)
