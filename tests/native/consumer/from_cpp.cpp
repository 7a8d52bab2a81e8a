// The example of the documentation: everything that may be asked for.
#include <loadmaster/allocate.hpp>

#include <iostream>

int main() {
    loadmaster::PackingProblem problem;
    problem.buffers = {
        {4096, 64, 0, 9}, {1000, 64, 0, 3}, {2048, 64, 0, 9}, {3000, 1, 3, 9}, {512, 1, 3, 9}};
    problem.buffers[0].offset = 0;    // pinned
    problem.gaps = {{2, 2, 6, 0, 0}}; // absent from 2 to 6
    problem.buffers[3].group = problem.buffers[4].group =
        1;                           // the last one lies in the one before it,
    problem.buffers[4].shift = 1024; // 1,024 bytes from its start
    problem.reserved = {{1 << 20, (1 << 20) + 4096}};
    problem.capacity = 16384;
    const loadmaster::Packing packing = loadmaster::allocate(problem);
    if (!packing) return std::cerr << loadmaster_status_name(packing.status) << "\n", 1;
    std::cout << "peak " << packing.peak << ", at least " << packing.bound << "\n";
    const bool right = packing.offsets[4] == packing.offsets[3] + 1024 &&
        loadmaster::verify(problem, packing.offsets).empty();
    problem.capacity = 8192;
    const loadmaster::Packing none = loadmaster::allocate(problem);
    std::cout << loadmaster_status_name(none.status) << ": " << none.witnesses.size()
              << " buffers need " << none.bound << " at " << none.instant << "\n";
    return right && none.status == LOADMASTER_INFEASIBLE && none.proof == LOADMASTER_LOAD ? 0 : 1;
}
