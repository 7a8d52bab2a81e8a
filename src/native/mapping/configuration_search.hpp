// The best configurations by branch and bound, which counts jobs of a kind and knows demands as
// they are.
#pragma once

#include "mapping/configurations.hpp"

namespace loadmaster::mapping {

// At least what any configuration gains, and the one that was found: it gains that, about, if the
// search settled.
struct Searched {
    double limit;
    bool settled;
    Configuration jobs;
};

// The greatest worth where demands sum to at most one (`fits`), or worth less demand where they sum
// to at least one; looks at so many nodes.
Searched search_configurations(const Prices &prices, bool fits, std::int64_t nodes);

} // namespace loadmaster::mapping
