// The Python module: a class per problem, whose constructor checks its arrays, so that no kernel
// reads out of bounds; named results.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_allocation(nb::module_ &module);
void bind_cost(nb::module_ &module);
void bind_cutting(nb::module_ &module);
void bind_allocation_policy(nb::module_ &module);
void bind_joint(nb::module_ &module);
void bind_mapping(nb::module_ &module);
void bind_placement(nb::module_ &module);
void bind_runtime(nb::module_ &module);
void bind_simulation(nb::module_ &module);

NB_MODULE(_native, module) {
    bind_simulation(module);
    bind_allocation_policy(module);
    bind_allocation(module);
    bind_cost(module);
    bind_cutting(module);
    bind_joint(module);
    bind_mapping(module);
    bind_runtime(module);
    bind_placement(module);
}
