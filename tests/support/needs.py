"""Files of the repository that tests read, and reasons to skip one that hold on a machine where
everything is installed."""

from pathlib import Path

FIXTURES = Path(__file__).parents[2] / "fixtures"

SANITIZER = "the address sanitizer keeps memory of its own"
GPU = "no GPU can be used here"
MOUNT = "no file system can be mounted here"
PUBLIC_INSTANCES = "the public instances are not at hand"
TOOLCHAIN = "this toolchain is large: .ci/toolchains installs it and runs these tests"
MAY_BE_MISSING = (GPU, MOUNT, PUBLIC_INSTANCES, SANITIZER, TOOLCHAIN)
