#include "../fluid.hpp"
#include "joint.hpp"

#include <algorithm>
#include <cmath>
#include <queue>

namespace loadmaster::joint {

namespace {

constexpr double kPicoseconds = 1e12;
constexpr std::size_t kLinks = 2;

std::int64_t whole(double seconds) { return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(seconds * kPicoseconds - 1e-6))); }

// Picoseconds that every job takes alone on every core, and its share of each link meanwhile.
struct Times {
    std::vector<std::int64_t> duration;  // jobs x cores
    std::vector<double> demand;          // jobs x cores x links
};

// Whether what a job writes goes to main memory: it is an output, or somebody reads it there, or nobody reads it at all.
std::vector<char> written_to_main(const Work &work, const Stays &stays) {
    std::vector<char> to_main(work.tensors), kept(work.tensors, 0);
    for (std::size_t t = 0; t < work.tensors; ++t) to_main[t] = work.output[t] != 0;
    for (std::size_t r = 0; r < work.row_job.size(); ++r) {
        const std::int64_t t = work.row_tensor[r];
        if (stays.row_stay[r] < 0) to_main[t] = 1;
        else kept[t] = 1;
    }
    for (std::size_t t = 0; t < work.tensors; ++t) to_main[t] = to_main[t] || !kept[t];
    return to_main;
}

Times job_times(const Work &work, const Machine &machine, const Stays &stays) {
    const std::size_t cells = work.jobs * work.cores;
    Times times{std::vector<std::int64_t>(cells), std::vector<double>(cells * kLinks, 0.0)};
    const std::vector<char> to_main = written_to_main(work, stays);
    for (std::size_t r = 0; r < work.row_job.size(); ++r) {
        const bool write = work.row_write[r], fast = stays.row_stay[r] >= 0, main = write ? to_main[work.row_tensor[r]] : !fast;
        const double per_main = main ? 1.0 / (write ? machine.main_write : machine.main_read) : 0.0;
        const double per_fast = fast ? 1.0 / (write ? machine.fast_write : machine.fast_read) : 0.0;
        double *demand = &times.demand[work.row_job[r] * work.cores * kLinks];
        for (std::size_t c = 0; c < work.cores; ++c) {
            const double bytes = static_cast<double>(work.moved[r * work.cores + c]);
            demand[c * kLinks] += bytes * per_main;
            demand[c * kLinks + 1] += bytes * per_fast;
        }
    }
    for (std::size_t cell = 0; cell < cells; ++cell) {
        double *demand = &times.demand[cell * kLinks];
        times.duration[cell] = whole(std::max({work.compute[cell], demand[0], demand[1]}));
        const double seconds = static_cast<double>(times.duration[cell]) / kPicoseconds;
        for (std::size_t link = 0; link < kLinks; ++link) demand[link] /= seconds;
    }
    return times;
}

class Simulation {
  public:
    Simulation(const Work &work, const Machine &machine, std::span<const std::int64_t> order, std::span<const double> priority, const Stays &stays)
        : work_(work), machine_(machine), order_(order), priority_(priority), stays_(stays), times_(job_times(work, machine, stays)),
          fluid_(kLinks, kLinks) {
        number_copies();
        list_users();
    }

    Admission run() {
        const std::size_t tasks = work_.jobs + result_.copies.size();
        result_.core.assign(work_.jobs, -1);
        result_.start.assign(tasks, -1);
        result_.end.assign(tasks, -1);
        std::vector<Running> finished;
        std::size_t done = 0;
        for (;;) {
            admit_in_turn();
            start_copy();
            start_jobs();
            if (fluid_.empty()) break;
            fluid_.share();
            const std::int64_t step = fluid_.until_next_end();
            now_ += step;
            fluid_.advance(step, finished);
            for (const Running &run : finished) {
                finish(static_cast<std::size_t>(run.task), run.resource);
                ++done;
            }
        }
        if (done == tasks) result_.makespan = now_;
        return std::move(result_);
    }

  private:
    // Fetches in the order in which they are admitted: by position, then by first use.
    void number_copies() {
        for (std::size_t s = 0; s < stays_.stays.size(); ++s)
            if (stays_.stays[s].fetched) result_.copies.push_back(static_cast<std::int64_t>(s));
        std::sort(result_.copies.begin(), result_.copies.end(), [&](std::int64_t a, std::int64_t b) {
            const Stay &one = stays_.stays[a], &two = stays_.stays[b];
            if (one.first != two.first) return one.first < two.first;
            return one.begin != two.begin ? one.begin < two.begin : a < b;
        });
        const double speed = std::min({machine_.engine, machine_.main_read, machine_.fast_write});
        for (std::int64_t s : result_.copies) {
            const double bytes = static_cast<double>(work_.bytes[stays_.stays[s].tensor]);
            const std::int64_t duration = whole(bytes / speed);
            const double seconds = static_cast<double>(duration) / kPicoseconds;
            copy_duration_.push_back(duration);
            copy_demand_.push_back(bytes / machine_.main_read / seconds);
            copy_demand_.push_back(bytes / machine_.fast_write / seconds);
        }
    }

    // Who uses each stay, and what each job waits for.
    void list_users() {
        const std::size_t stays = stays_.stays.size();
        users_.assign(stays, 0);
        used_.resize(work_.jobs);
        waiting_ = work_.successors.predecessor_counts();
        readers_.resize(stays);
        for (std::size_t r = 0; r < work_.row_job.size(); ++r) {
            const std::int64_t s = stays_.row_stay[r], job = work_.row_job[r];
            if (s < 0 || std::find(used_[job].begin(), used_[job].end(), s) != used_[job].end()) continue;
            used_[job].push_back(s);
            ++users_[s];
            if (stays_.stays[s].fetched) {
                readers_[s].push_back(job);
                ++waiting_[job];
            }
        }
        admitted_.assign(work_.jobs, 0);
        busy_.assign(work_.cores + 1, 0);
        free_at_.resize(work_.cores);
    }

    // Jobs and fetches take their room in turn: the fetches of a position before its job.
    void admit_in_turn() {
        while (next_ < order_.size()) {
            while (next_copy_ < result_.copies.size() && stays_.stays[result_.copies[next_copy_]].first <= static_cast<std::int64_t>(next_)) {
                const std::int64_t room = work_.room[stays_.stays[result_.copies[next_copy_]].tensor];
                if (reserved_ + room > machine_.capacity) return;
                reserved_ += room;
                ++next_copy_;
            }
            const std::int64_t job = order_[next_];
            std::int64_t room = 0;
            for (std::int64_t s : used_[job])
                if (!stays_.stays[s].fetched && work_.producer[stays_.stays[s].tensor] == job) room += work_.room[stays_.stays[s].tensor];
            if (reserved_ + room > machine_.capacity) return;
            reserved_ += room;
            admitted_[job] = 1;
            if (waiting_[job] == 0) ready_.emplace(priority_[job], -job);
            ++next_;
        }
    }

    void start_copy() {
        if (busy_[work_.cores] || started_copies_ == next_copy_) return;
        // A tensor has one place at a time: its earlier stay must be over.
        const std::int64_t s = result_.copies[started_copies_];
        if (s > 0 && stays_.stays[s - 1].tensor == stays_.stays[s].tensor && users_[s - 1] > 0) return;
        const std::size_t task = work_.jobs + started_copies_;
        busy_[work_.cores] = 1;
        result_.start[task] = now_;
        fluid_.add(static_cast<std::int64_t>(task), static_cast<std::int32_t>(work_.cores), copy_duration_[started_copies_], &copy_demand_[started_copies_ * kLinks]);
        ++started_copies_;
    }

    void start_jobs() {
        std::fill(free_at_.begin(), free_at_.end(), static_cast<double>(now_));
        std::size_t idle = work_.cores;
        for (const Running &run : fluid_.running())
            if (run.resource < static_cast<std::int32_t>(work_.cores)) {
                free_at_[run.resource] += run.remaining / run.speed;
                --idle;
            }
        // As in `dispatch`: a job that would rather wait for a busy core books it.
        held_.clear();
        bool started = idle < work_.cores;
        for (std::size_t looks = 4 * work_.cores; (looks > 0 || !started) && idle > 0 && !ready_.empty(); looks -= looks > 0) {
            const auto item = ready_.top();
            ready_.pop();
            const std::size_t job = static_cast<std::size_t>(-item.second);
            const std::int64_t *duration = &times_.duration[job * work_.cores];
            std::size_t core = 0;
            double finish = free_at_[0] + static_cast<double>(duration[0]);
            for (std::size_t c = 1; c < work_.cores; ++c)
                if (free_at_[c] + static_cast<double>(duration[c]) < finish) finish = free_at_[c] + static_cast<double>(duration[c]), core = c;
            free_at_[core] = finish;
            if (busy_[core]) {
                held_.push_back(item);
                continue;
            }
            busy_[core] = 1;
            --idle;
            started = true;
            result_.core[job] = static_cast<std::int32_t>(core);
            result_.start[job] = now_;
            fluid_.add(static_cast<std::int64_t>(job), static_cast<std::int32_t>(core), duration[core], &times_.demand[(job * work_.cores + core) * kLinks]);
        }
        for (const auto &item : held_) ready_.push(item);
    }

    void enable(std::int64_t job) {
        if (--waiting_[job] == 0 && admitted_[job]) ready_.emplace(priority_[job], -job);
    }

    void finish(std::size_t task, std::int32_t resource) {
        busy_[resource] = 0;
        result_.end[task] = now_;
        if (task >= work_.jobs) {
            for (std::int64_t job : readers_[result_.copies[task - work_.jobs]]) enable(job);
            return;
        }
        for (std::int64_t i = work_.successors.first[task]; i < work_.successors.first[task + 1]; ++i) enable(work_.successors.next[i]);
        for (std::int64_t s : used_[task])
            if (--users_[s] == 0) reserved_ -= work_.room[stays_.stays[s].tensor];
    }

    const Work &work_;
    const Machine &machine_;
    std::span<const std::int64_t> order_;
    std::span<const double> priority_;
    const Stays &stays_;
    Times times_;
    Fluid fluid_;
    Admission result_;
    std::vector<std::int64_t> copy_duration_, users_, waiting_;
    std::vector<double> copy_demand_, free_at_;
    std::vector<std::vector<std::int64_t>> used_, readers_;
    std::vector<char> admitted_, busy_;
    // Highest priority first, ties by index.
    std::priority_queue<std::pair<double, std::int64_t>> ready_;
    std::vector<std::pair<double, std::int64_t>> held_;
    std::size_t next_ = 0, next_copy_ = 0, started_copies_ = 0;
    std::int64_t reserved_ = 0, now_ = 0;
};

}  // namespace

Admission admit(const Work &work, const Machine &machine, std::span<const std::int64_t> order, std::span<const double> priority, const Stays &stays) {
    return Simulation(work, machine, order, priority, stays).run();
}

}  // namespace loadmaster::joint
