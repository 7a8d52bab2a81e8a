#include "bound.hpp"

#include "path.hpp"

#include <algorithm>
#include <cmath>

namespace loadmaster::placement {

namespace {

__extension__ typedef __int128 Wide;

constexpr Wide kNever = Wide{1} << 125;
// Costs in seconds are themselves rounded, each by less than 2^-52 of itself, and so is whatever sum the bound is compared with.
constexpr double kRounding = 1e-12;

Wide floored(double seconds, int shift) { return static_cast<Wide>(std::floor(std::ldexp(seconds, shift))); }

class Bound {
  public:
    Bound(const Tensors &tensors, const Kernels &kernels, const Prices &prices) : t_(tensors), k_(kernels), p_(prices), sum_(kernels.count() + 1, 0) {
        for (std::int64_t k = 0; k < k_.count(); ++k) sum_[k + 1] = sum_[k] + p_.memory[k];
    }

    Wide kernel(std::int64_t k) {
        Wide best = kNever;
        const std::int64_t entries = k_.measured(k) ? k_.entries(k) : 0;
        if (entries) add_surcharges(k, entries);
        for (std::int64_t a = k_.first_algorithm[k]; a < k_.first_algorithm[k + 1]; ++a) {
            const Wide rent = Wide{p_.memory[k]} * k_.workspace[a];
            if (!entries) best = std::min(best, rent + floored(k_.seconds[a], p_.shift - kShareBits) * p_.shares[3 * k]);
            const double *row = k_.table.data() + k_.first_entry[k] + (a - k_.first_algorithm[k]) * entries;
            for (std::int64_t i = 0; i < entries; ++i)
                if (std::isfinite(row[i])) best = std::min(best, rent + floored(row[i], p_.shift) - surcharges_[i]);
        }
        return best - Wide{p_.memory[k]} * k_.limit[k];
    }

    Wide tensor(std::int64_t t, bool moves) {
        fill(t);
        return moves ? path_.solve(choices_, nullptr) : placed_once();
    }

  private:
    void add_surcharges(std::int64_t k, std::int64_t entries) {
        surcharges_.assign(1, 0);
        for (std::int64_t o = 0; (std::int64_t{1} << o) < entries; ++o) {
            const Wide more = floored(p_.surcharge[k_.use[k_.first_operand[k] + o]], p_.shift);
            for (std::size_t i = 0, half = surcharges_.size(); i < half; ++i) surcharges_.push_back(surcharges_[i] + more);
        }
    }

    bool tabled(std::int64_t u) const {
        const std::int64_t k = t_.kernel[u], o = t_.operand[u] - k_.first_operand[k];
        return o < 62 && (std::int64_t{1} << o) < k_.entries(k);
    }

    void fill(std::int64_t t) {
        const std::int64_t begin = t_.first[t], end = t_.first[t + 1], size = t_.size[t], last = k_.count();
        choices_.never = kNever;
        choices_.life = static_cast<Life>(t_.life[t]);
        choices_.resize(end - begin);
        choices_.in = floored(t_.to_fast[t], p_.shift);
        choices_.out = floored(t_.to_slow[t], p_.shift);
        choices_.tail = end > begin ? size * (sum_[last] - sum_[t_.kernel[end - 1] + 1]) : Wide{0};
        for (std::int64_t u = begin; u < end; ++u) {
            const std::int64_t i = u - begin, k = t_.kernel[u];
            choices_.reads[i] = t_.reads[u];
            choices_.writes[i] = t_.writes[u];
            choices_.fast[i] = Wide{p_.memory[k]} * size;
            choices_.slow[i] = 0;
            if (k_.measured(k)) {
                if (tabled(u)) choices_.slow[i] = floored(p_.surcharge[u], p_.shift);
            } else {
                choices_.fast[i] += floored(t_.fast[u], p_.shift - kShareBits) * p_.shares[3 * k + 1];
                choices_.slow[i] = std::isfinite(t_.slow[u]) ? floored(t_.slow[u], p_.shift - kShareBits) * p_.shares[3 * k + 2] : kNever;
            }
            choices_.stay[i] = u > begin ? size * (sum_[k] - sum_[t_.kernel[u - 1] + 1]) : size * sum_[k];
        }
        if (choices_.life == Life::cyclic && end > begin) choices_.stay[0] += choices_.tail;
    }

    Wide placed_once() const {
        Wide fast = choices_.life == Life::output ? choices_.tail : Wide{0}, slow = 0;
        for (std::size_t i = 0; i < choices_.uses(); ++i) {
            const bool there = i > 0 || choices_.life == Life::cyclic || choices_.life == Life::input;
            fast += choices_.fast[i] + (there ? choices_.stay[i] : Wide{0});
            slow = std::min(kNever, slow + choices_.slow[i]);
        }
        return std::min(fast, slow);
    }

    const Tensors &t_;
    const Kernels &k_;
    const Prices &p_;
    std::vector<Wide> sum_;  // prices of all kernels before each
    std::vector<Wide> surcharges_;
    Choices<Wide> choices_;
    ShortestPath<Wide> path_;
};

}  // namespace

double lagrangian_bound(const Tensors &tensors, const Kernels &kernels, const Prices &prices, bool moves) {
    Bound bound(tensors, kernels, prices);
    Wide total = 0;
    for (std::int64_t k = 0; k < kernels.count(); ++k) total += bound.kernel(k);
    for (std::int64_t t = 0; t < tensors.count(); ++t)
        if (tensors.first[t + 1] > tensors.first[t]) total += bound.tensor(t, moves);
    return std::max(0.0, std::ldexp(static_cast<double>(total), -prices.shift) * (1.0 - kRounding));
}

}  // namespace loadmaster::placement
