#include "mapping/contents.hpp"

#include <algorithm>
#include <cstddef>

namespace loadmaster::mapping {

namespace {

// Relative gain for which nothing more is looked at; far more than rounding adds or loses in any
// sum here.
constexpr double kNear = 1e-7;

struct Ware {
    std::size_t kind;
    double latency, worth;
    std::int32_t count;
};

// Depth first, over kinds by falling worth per time and from many jobs to few, with Dantzig's bound
// (1957): the rest may be in shares.
class Knapsack {
  public:
    Knapsack(const Wares &wares, double room, std::int64_t nodes) : nodes_(nodes) {
        for (std::size_t kind = 0; kind < wares.latency.size(); ++kind)
            if (wares.worth[kind] > 0.0 && wares.latency[kind] <= room && wares.count[kind] > 0)
                wares_.push_back({kind, wares.latency[kind], wares.worth[kind], wares.count[kind]});
        std::sort(wares_.begin(), wares_.end(), [](const Ware &a, const Ware &b) {
            const double first = a.worth * b.latency, second = b.worth * a.latency;
            return first != second ? first > second : a.kind < b.kind;
        });
        jobs_.assign(wares_.size(), 0);
        best_.jobs.assign(wares.latency.size(), 0);
        look(0, room, 0.0);
        best_.at_most = std::max(best_.worth * (1.0 + kNear), open_);
    }

    const Content &best() const { return best_; }

  private:
    static double fitting(const Ware &ware, double room) {
        return ware.latency * ware.count <= room ? ware.count : room / ware.latency;
    }

    double limit(std::size_t at, double room) const {
        double worth = 0.0;
        for (; at < wares_.size(); ++at) {
            const double some = fitting(wares_[at], room);
            worth += some * wares_[at].worth;
            if (some < wares_[at].count) break;
            room -= some * wares_[at].latency;
        }
        return worth;
    }

    // Everything that has these jobs of the kinds before `at`; whether any of it may be worth more
    // than what was found.
    bool look(std::size_t at, double room, double worth) {
        if (at == wares_.size()) {
            if (worth > best_.worth) keep(worth);
            return true;
        }
        const double reach = worth + limit(at, room);
        if (reach <= best_.worth * (1.0 + kNear)) return false;
        if (nodes_-- <= 0) {
            open_ = std::max(open_, reach);
            return false;
        }
        const Ware &ware = wares_[at];
        // With fewer jobs of the kind that is worth most for its time, the limit only falls: the
        // first in vain is the last.
        for (auto some = static_cast<std::int32_t>(fitting(ware, room)); some >= 0; --some) {
            jobs_[at] = some;
            if (!look(at + 1, room - some * ware.latency, worth + some * ware.worth)) break;
        }
        jobs_[at] = 0;
        return true;
    }

    void keep(double worth) {
        best_.worth = worth;
        for (std::size_t at = 0; at < wares_.size(); ++at) best_.jobs[wares_[at].kind] = jobs_[at];
    }

    std::int64_t nodes_;
    double open_ = 0.0;
    std::vector<Ware> wares_;
    std::vector<std::int32_t> jobs_;
    Content best_;
};

} // namespace

Content best_content(const Wares &wares, double room, std::int64_t nodes) {
    return Knapsack(wares, room, nodes).best();
}

} // namespace loadmaster::mapping
