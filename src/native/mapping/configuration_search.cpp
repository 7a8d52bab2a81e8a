#include "mapping/configuration_search.hpp"

#include "common/limits.hpp"
#include "common/rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>

namespace loadmaster::mapping {

namespace {

constexpr double kNone = -kInfinite;
// Relative gain for which nothing more is looked at; prices make many configurations equally good.
constexpr double kNear = 1e-10;
// How often the price of the bus is doubled at most, and how often halved.
constexpr int kDoublings = 10, kHalvings = 24;

// Jobs of one kind on cores of one kind: what each gains, and asks for.
struct Option {
    std::int32_t job;
    std::size_t kind;
    double gain, demand;
};

// Options by falling gain at a price of the bus, as long as that is positive.
struct Ranking {
    double price = 0.0;
    std::vector<std::size_t> order;
};

// Depth first over kinds of jobs on kinds of cores, from many jobs to few. A branch is bounded by a
// price of the bus (Lagrange): what is left of it is paid for, or what must still be asked for is,
// and the cores left run what then gains most.
class Search {
  public:
    // Demands sum to at most one (`fits`), or to at least one.
    Search(const Prices &prices, bool fits, std::int64_t nodes)
        : prices_(prices), fits_(fits), nodes_(nodes),
          left_(prices.count.begin(), prices.count.end()),
          cores_(prices.cores.begin(), prices.cores.end()) {
        const std::size_t kinds = prices.cores.size();
        for (std::size_t job : indices(prices.count.size()))
            for (std::size_t kind : indices(kinds)) {
                const double worth = prices.worth[job * kinds + kind],
                             demand = prices.demand[job * kinds + kind];
                if (worth <= 0.0 || prices.count[job] == 0 || (fits && demand > 1.0)) continue;
                options_.push_back(
                    {static_cast<std::int32_t>(job), kind, fits ? worth : worth - demand, demand});
                terms_ = std::max(terms_, worth + demand);
            }
        const double most = std::accumulate(cores_.begin(), cores_.end(), 0.0);
        terms_ *= most;
        rounded_ = (2.0 * most + 10.0) * std::numeric_limits<double>::epsilon();
        price_bus();
        // Where much must be asked for, jobs that ask for much come first: without them there is
        // little left to choose from.
        std::ranges::stable_sort(options_, [&](const Option &a, const Option &b) {
            return fits ? value(a, bus_.price) > value(b, bus_.price) : a.demand > b.demand;
        });
        rank(bus_, bus_.price);
        rank(free_, 0.0);
        best_ = fits ? 0.0 : kNone;
        look(0, 0.0, 0.0);
    }

    Searched result() const {
        Searched result{std::max(enough(), open_), open_ == kNone, {}};
        if (result.limit > kNone) result.limit += rounded_ * terms_ * (1.0 + bus_.price);
        std::size_t slots = 0;
        for (std::size_t kind : indices(prices_.cores.size())) {
            for (const Option *option : found_)
                if (option->kind == kind) result.jobs.push_back(option->job);
            result.jobs.resize(slots += static_cast<std::size_t>(prices_.cores[kind]), -1);
        }
        return result;
    }

  private:
    double signed_price(double price) const { return fits_ ? price : -price; }
    double value(const Option &option, double price) const {
        return option.gain - signed_price(price) * option.demand;
    }
    // What a branch must exceed to be looked at. Beyond the bus, what matters is a gain and the bus
    // together.
    double enough() const {
        return best_ == kNone ? kNone : best_ + kNear * (fits_ ? best_ : 1.0 + std::abs(best_));
    }
    std::int32_t room(const Option &option) const {
        return std::min(cores_[option.kind], left_[option.job]);
    }

    void rank(Ranking &ranking, double price) {
        ranking.price = price;
        ranking.order.clear();
        std::vector<double> values(options_.size());
        for (std::size_t at : indices(options_.size()))
            if ((values[at] = value(options_[at], price)) > 0.0) ranking.order.push_back(at);
        std::ranges::stable_sort(
            ranking.order, std::greater{}, [&](std::size_t a) { return values[a]; });
    }

    // The price at which the bus is just used up by jobs that do not fill it alone: the bound is
    // convex in it, and any price gives one.
    void price_bus() {
        const auto suffices = [&](double price) {
            rank(bus_, price);
            double demand = 0.0;
            std::erase_if(bus_.order, [&](std::size_t at) { return options_[at].demand >= 1.0; });
            fill(bus_, 0,
                [&](const Option &option, std::int32_t some) { demand += some * option.demand; });
            return fits_ ? demand <= 1.0 : demand >= 1.0;
        };
        double low = 0.0, high = 0.0;
        for (int doubled = 0; doubled < kDoublings && !suffices(high); ++doubled) {
            low = high;
            high = high > 0.0 ? 2.0 * high : 1.0;
        }
        for (int halved = 0; halved < kHalvings && low < high; ++halved) {
            const double middle = (low + high) / 2.0;
            (suffices(middle) ? high : low) = middle;
        }
        bus_.price = high;
    }

    // Fills the cores left with options from `at` on, as if no two kinds of cores shared jobs: no
    // filling gains more at the ranking's price.
    template <typename Take> void fill(const Ranking &ranking, std::size_t at, Take take) {
        free_cores_ = cores_;
        std::int32_t left = std::accumulate(cores_.begin(), cores_.end(), 0);
        for (std::size_t i = 0; i < ranking.order.size() && left > 0; ++i) {
            if (ranking.order[i] < at) continue;
            const Option &option = options_[ranking.order[i]];
            const std::int32_t some = std::min(free_cores_[option.kind], left_[option.job]);
            if (some == 0) continue;
            free_cores_[option.kind] -= some;
            left -= some;
            take(option, some);
        }
    }

    // What the cores left ask for at most with options from `at` on, which come by falling demand.
    double most_demand(std::size_t at) {
        free_cores_ = cores_;
        std::int32_t left = std::accumulate(cores_.begin(), cores_.end(), 0);
        double demand = 0.0;
        for (; at < options_.size() && left > 0; ++at) {
            const std::int32_t some =
                std::min(free_cores_[options_[at].kind], left_[options_[at].job]);
            free_cores_[options_[at].kind] -= some;
            left -= some;
            demand += some * options_[at].demand;
        }
        return demand;
    }

    // Everything that has the jobs taken so far, and of options before `at` no more.
    void look(std::size_t at, double gain, double demand) {
        const bool asked = !fits_ && demand >= 1.0;
        if (asked && filled(at, gain, demand)) return;
        for (;; ++at) {
            while (at < options_.size() &&
                (room(options_[at]) == 0 ||
                    (fits_ && demand + options_[at].demand > 1.0 + rounded_)))
                ++at;
            if (at == options_.size() || (!fits_ && demand + most_demand(at) < 1.0 - rounded_))
                return;
            const Option &option = options_[at];
            // A job that fills the bus alone has no need of a price.
            const Ranking &ranking = asked || (!fits_ && option.demand >= 1.0) ? free_ : bus_;
            double reach = gain + signed_price(ranking.price) * (1.0 - demand);
            fill(ranking, at, [&](const Option &each, std::int32_t some) {
                reach += some * value(each, ranking.price);
            });
            if (reach <= enough()) return;
            if (nodes_-- <= 0) {
                open_ = std::max(open_, reach);
                return;
            }
            for (std::int32_t some = room(option); some > 0; --some) {
                const double sum = demand + some * option.demand;
                if (fits_ && sum > 1.0 + rounded_) continue;
                take(option, some);
                keep(gain + some * option.gain, sum);
                look(at + 1, gain + some * option.gain, sum);
                take(option, -some);
            }
        }
    }

    // Where the bus is no matter any more: fills the cores left, and says whether that is possible,
    // which is then best.
    bool filled(std::size_t at, double gain, double demand) {
        const std::size_t before = taken_.size();
        bool possible = true;
        fill(free_, at, [&](const Option &option, std::int32_t some) {
            gain += some * option.gain;
            demand += some * option.demand;
            taken_.insert(taken_.end(), some, &option);
        });
        for (std::size_t i = before; i < taken_.size(); ++i)
            possible &= --left_[taken_[i]->job] >= 0;
        for (std::size_t i = before; i < taken_.size(); ++i) ++left_[taken_[i]->job];
        if (possible) keep(gain, demand);
        taken_.resize(before);
        return possible;
    }

    void take(const Option &option, std::int32_t some) {
        left_[option.job] -= some;
        cores_[option.kind] -= some;
        if (some > 0)
            taken_.insert(taken_.end(), some, &option);
        else
            taken_.resize(taken_.size() - static_cast<std::size_t>(-some));
    }

    void keep(double gain, double demand) {
        if (gain <= best_ || (!fits_ && demand < 1.0 - rounded_)) return;
        best_ = gain;
        found_ = taken_;
    }

    const Prices &prices_;
    bool fits_;
    std::int64_t nodes_;
    std::vector<Option> options_;
    Ranking bus_, free_;
    std::vector<std::int32_t> left_, cores_, free_cores_;
    std::vector<const Option *> taken_, found_;
    // The sum of all terms is at most `terms_`, and floating point adds or loses no more than
    // `rounded_` of that.
    double terms_ = 0.0, rounded_ = 0.0, best_ = 0.0, open_ = kNone;
};

} // namespace

Searched search_configurations(const Prices &prices, bool fits, std::int64_t nodes) {
    return Search(prices, fits, nodes).result();
}

} // namespace loadmaster::mapping
