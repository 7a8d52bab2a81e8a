#include "allocation/pairs.hpp"

#include "common/limits.hpp"

#include <algorithm>
#include <limits>

namespace loadmaster::allocation {

namespace {

using Int = std::int64_t;

// So many instants are looked at, and lifetimes at one of them at most.
constexpr int kInstants = 6;
constexpr std::size_t kMostAtOnce = 1'500;
// An instant is looked at if those that were not seen at one before have at least this share of its
// bytes.
constexpr Int kNewShare = 4;
// Steps of a search for each lifetime, and steps times lifetimes at most.
constexpr std::size_t kStepsEach = 16, kMostLooks = 5'000'000;
// A buffer that was dropped stays out for so many steps at least, and for up to so many more.
constexpr std::size_t kOutFor = 7, kOutForMore = 10;

// A buffer from its first section that occupies it whole to its last.
struct Life {
    Int begin, end, buffer;
    bool seen = false;
};

std::vector<Life> lives_of(const Buffers &buffers, bool &gapped) {
    std::vector<Life> lives;
    for (Int b : indices(buffers.count())) {
        Life life{kUnlimited, std::numeric_limits<Int>::min(), b};
        Int sections = 0;
        for (Int s : buffers.sections(b)) {
            if (!buffers.whole(b, s)) continue;
            life.begin = std::min(life.begin, buffers.begin[s]),
            life.end = std::max(life.end, buffers.end[s]);
            ++sections;
        }
        if (sections > 0) lives.push_back(life);
        gapped |= sections > 1;
    }
    return lives;
}

// Whether whole sections of two buffers overlap. Linear, as sections are in order of time; where
// several are at once, as of aliases, it may miss some, which weakens the bound at most.
bool meet(const Buffers &buffers, Int one, Int other) {
    Int s = buffers.first[one], t = buffers.first[other];
    while (s < buffers.first[one + 1] && t < buffers.first[other + 1]) {
        const bool is_whole = buffers.whole(one, s);
        if (is_whole && buffers.whole(other, t) && buffers.begin[s] < buffers.end[t] &&
            buffers.begin[t] < buffers.end[s])
            return true;
        ++(buffers.end[s] < buffers.end[t] || !is_whole ? s : t);
    }
    return false;
}

// The instants at which lifetimes begin, in turn.
class Instants {
  public:
    explicit Instants(const std::vector<Life> &lives)
        : lives_(lives), births_(sorted_by<std::size_t>(
                             lives.size(), [&](std::size_t a) { return lives[a].begin; })),
          deaths_(
              sorted_by<std::size_t>(lives.size(), [&](std::size_t a) { return lives[a].end; })) {}
    // The heaviest one above `enough` bytes of which enough were not seen before; false if there is
    // none.
    bool heaviest(const Buffers &buffers, Int enough, Int &instant) const {
        Int all = 0, fresh = 0, most = enough;
        std::size_t dead = 0;
        const auto count = [&](const Life &life, Int sign) {
            all += sign * buffers.size[life.buffer];
            if (!life.seen) fresh += sign * buffers.size[life.buffer];
        };
        for (std::size_t b : births_) {
            for (; lives_[deaths_[dead]].end <= lives_[b].begin; ++dead)
                count(lives_[deaths_[dead]], -1);
            count(lives_[b], 1);
            if (all > most && fresh >= all / kNewShare) most = all, instant = lives_[b].begin;
        }
        return most > enough;
    }

  private:
    const std::vector<Life> &lives_;
    std::vector<std::size_t> births_, deaths_;
};

// A tabu search for a heavy set of buffers that meet pairwise.
class Gathering {
  public:
    Gathering(const Buffers &buffers, const std::vector<Int> &some)
        : count_(some.size()), some_(some), apart_(count_ * count_, 0), size_(count_),
          gain_(count_), in_(count_, 0), out_until_(count_, 0) {
        for (std::size_t a : indices(count_)) {
            size_[a] = gain_[a] = buffers.size[some[a]];
            for (std::size_t b : indices(a))
                if (!meet(buffers, some[a], some[b]))
                    apart_[a * count_ + b] = apart_[b * count_ + a] = 1;
        }
    }
    Together run() {
        Together best;
        const std::size_t steps = std::min(kStepsEach * count_, kMostLooks / count_);
        for (std::size_t step = 1; step <= steps; ++step) {
            std::size_t next = count_;
            for (std::size_t a : indices(count_))
                if (!in_[a] && out_until_[a] <= step && (next == count_ || gain_[a] > gain_[next]))
                    next = a;
            if (next == count_) continue;
            for (std::size_t b : indices(count_))
                if (in_[b] && apart_[next * count_ + b]) {
                    change(b, -1);
                    out_until_[b] = step + kOutFor + step % kOutForMore;
                }
            change(next, 1);
            if (bytes_ > best.bytes) best = gathered();
        }
        return best;
    }

  private:
    void change(std::size_t a, Int sign) {
        in_[a] = sign > 0;
        bytes_ += sign * size_[a];
        for (std::size_t b : indices(count_))
            if (apart_[a * count_ + b]) gain_[b] -= sign * size_[a];
    }
    Together gathered() const {
        Together found{bytes_, {}};
        for (std::size_t a : indices(count_))
            if (in_[a]) found.buffers.push_back(some_[a]);
        return found;
    }

    const std::size_t count_;
    const std::vector<Int> &some_;
    std::vector<char> apart_;
    std::vector<Int> size_, gain_; // gain: of taking a buffer in, less what has to go for it
    std::vector<char> in_;
    std::vector<std::size_t> out_until_;
    Int bytes_ = 0;
};

} // namespace

Together alive_in_pairs(const Buffers &buffers, Int enough) {
    bool gapped = false;
    std::vector<Life> lives = lives_of(buffers, gapped);
    Together best;
    if (!gapped) return best;
    const Instants instants(lives);
    Int instant = 0;
    for (int looked = 0;
        looked < kInstants && instants.heaviest(buffers, std::max(enough, best.bytes), instant);
        ++looked) {
        std::vector<Int> some;
        for (Life &life : lives)
            if (life.begin <= instant && instant < life.end)
                some.push_back(life.buffer), life.seen = true;
        if (some.size() > kMostAtOnce) break;
        Together found = Gathering(buffers, some).run();
        if (found.bytes > std::max(enough, best.bytes)) best = std::move(found);
    }
    return best;
}

} // namespace loadmaster::allocation
