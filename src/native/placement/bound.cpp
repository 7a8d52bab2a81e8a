#include "placement/bound.hpp"

#include "placement/path.hpp"

#include <algorithm>
#include <cmath>

namespace loadmaster::placement {

namespace {

__extension__ typedef __int128 Wide;

constexpr Wide kNever = Wide{1} << 125;
// Costs in seconds are themselves rounded, each by less than 2^-52 of itself, and so is whatever
// sum the bound is compared with.
constexpr double kRounding = 1e-12;

Wide floored(double seconds, int shift) {
    return static_cast<Wide>(std::floor(std::ldexp(seconds, shift)));
}

class Bound {
  public:
    Bound(const Tensors &tensors, const Kernels &kernels, const Prices &prices)
        : t_(tensors), k_(kernels), p_(prices), sum_(kernels.count() + 1, 0) {
        owner_.resize(t_.kernel.size());
        for (std::int64_t t : indices(t_.count()))
            for (std::int64_t u : row_of(t_.first, t)) owner_[u] = t;
        combined_.resize(k_.count());
        for (std::int64_t k : indices(k_.count())) combined_[k] = combined(k);
        for (std::int64_t k : indices(k_.count())) sum_[k + 1] = sum_[k] + p_.memory[k];
    }

    Wide kernel(std::int64_t k) {
        list_combinations(k);
        Wide best = kNever;
        for (std::int64_t a : row_of(k_.first_algorithm, k)) {
            const Wide rent = Wide{p_.memory[k]} * k_.workspace[a];
            if (combinations_.empty())
                best = std::min(
                    best, rent + floored(k_.seconds[a], p_.shift - kShareBits) * p_.shares[3 * k]);
            const double *row = k_.table.data() + k_.first_entry[k] +
                (a - k_.first_algorithm[k]) * std::ssize(combinations_);
            const Wide arithmetic = floored(k_.seconds[a], p_.shift);
            for (std::size_t i : indices(combinations_.size())) {
                const Combination &c = combinations_[i];
                if (k_.measured(k) ? !std::isfinite(row[i]) : c.slow >= kNever) continue;
                if (k_.workspace[a] + c.bytes > k_.limit[k]) continue;
                const Wide time = k_.measured(k) ? floored(row[i], p_.shift)
                                                 : std::max({arithmetic, c.fast, c.slow});
                best = std::min(best, rent + time - c.surcharge);
            }
        }
        return best - Wide{p_.memory[k]} * k_.limit[k];
    }

    Wide tensor(std::int64_t t, bool moves) {
        fill(t);
        return moves ? path_.solve(choices_, nullptr) : std::ranges::min(placed_once(choices_));
    }

  private:
    // Seconds of either memory, surcharges, and bytes of the fast memory, for a combination of
    // places. Only whole tensors are told apart.
    struct Combination {
        Wide fast = 0, slow = 0, surcharge = 0;
        std::int64_t bytes = 0;
    };

    // All combinations of places of the operands that are told apart. Those that are not add
    // nothing: a kernel takes no less with them.
    void list_combinations(std::int64_t k) {
        combinations_.clear();
        if (k_.measured(k)) combinations_.emplace_back();
        for (std::int64_t o : row_of(k_.first_operand, k)) {
            const std::int64_t u = k_.use[o];
            if (!told_apart(u)) continue;
            if (combinations_.empty()) combinations_.emplace_back();
            const Wide fast = floored(t_.fast[u], p_.shift),
                       surcharge = floored(p_.surcharge[u], p_.shift);
            const Wide slow = std::isfinite(t_.slow[u]) ? floored(t_.slow[u], p_.shift) : kNever;
            for (std::size_t i = 0, half = combinations_.size(); i < half; ++i) {
                Combination c = combinations_[i];
                c.slow = std::min(kNever, c.slow + slow);
                c.surcharge += surcharge;
                combinations_.push_back(c);
                combinations_[i].fast += fast;
                combinations_[i].bytes += t_.size[owner_[u]];
            }
        }
    }

    bool told_apart(std::int64_t u) const {
        const std::int64_t k = t_.kernel[u], o = t_.operand[u] - k_.first_operand[k];
        return k_.measured(k) ? o < 62 && (std::int64_t{1} << o) < k_.entries(k) : p_.noted[u] != 0;
    }

    // Whether combinations are told apart at all at this use's kernel.
    bool combined(std::int64_t k) const {
        if (k_.measured(k)) return true;
        for (std::int64_t o : row_of(k_.first_operand, k))
            if (p_.noted[k_.use[o]]) return true;
        return false;
    }

    void fill(std::int64_t t) {
        const std::int64_t begin = t_.first[t], end = t_.first[t + 1], size = t_.size[t],
                           last = k_.count();
        choices_.never = kNever;
        choices_.live_range = t_.range(t);
        choices_.resize(end - begin);
        choices_.last = end > begin ? floored(t_.to_slow[end - 1], p_.shift) : Wide{0};
        choices_.tail = end > begin ? size * (sum_[last] - sum_[t_.kernel[end - 1] + 1]) : Wide{0};
        for (std::int64_t u = begin; u < end; ++u) {
            const std::int64_t i = u - begin, k = t_.kernel[u];
            choices_.in[i] = floored(t_.to_fast[u], p_.shift);
            choices_.out[i] = u > begin ? floored(t_.to_slow[u - 1], p_.shift) : choices_.last;
            choices_.reads[i] = t_.reads[u];
            choices_.writes[i] = t_.writes[u];
            choices_.fast[i] = Wide{p_.memory[k]} * size;
            choices_.slow[i] = 0;
            if (combined_[k]) {
                if (told_apart(u)) choices_.slow[i] = floored(p_.surcharge[u], p_.shift);
                if (!k_.measured(k) && !std::isfinite(t_.slow[u])) choices_.slow[i] = kNever;
            } else {
                choices_.fast[i] +=
                    floored(t_.fast[u], p_.shift - kShareBits) * p_.shares[3 * k + 1];
                choices_.slow[i] = std::isfinite(t_.slow[u])
                    ? floored(t_.slow[u], p_.shift - kShareBits) * p_.shares[3 * k + 2]
                    : kNever;
            }
            choices_.stay[i] =
                u > begin ? size * (sum_[k] - sum_[t_.kernel[u - 1] + 1]) : size * sum_[k];
        }
        if (choices_.live_range == LiveRange::cyclic && end > begin)
            choices_.stay[0] += choices_.tail;
    }

    const Tensors &t_;
    const Kernels &k_;
    const Prices &p_;
    std::vector<Wide> sum_;           // prices of all kernels before each
    std::vector<std::int64_t> owner_; // the tensor of every use
    std::vector<std::uint8_t>
        combined_; // whether each kernel's combinations of places are told apart
    std::vector<Combination> combinations_;
    Choices<Wide> choices_;
    ShortestPath<Wide> path_;
};

} // namespace

double lagrangian_bound(
    const Tensors &tensors, const Kernels &kernels, const Prices &prices, bool moves) {
    Bound bound(tensors, kernels, prices);
    Wide total = 0;
    for (std::int64_t k : indices(kernels.count())) total += bound.kernel(k);
    for (std::int64_t t : indices(tensors.count()))
        if (tensors.first[t + 1] > tensors.first[t]) total += bound.tensor(t, moves);
    return std::max(0.0, std::ldexp(static_cast<double>(total), -prices.shift) * (1.0 - kRounding));
}

} // namespace loadmaster::placement
