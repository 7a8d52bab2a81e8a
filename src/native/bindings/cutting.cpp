// Python binding of the choice of cuts.
#include "bindings/task_graph.hpp"
#include "cutting/improve.hpp"
#include "cutting/piece_simulator.hpp"
#include "cutting/stacks.hpp"

#include <algorithm>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace loadmaster;

namespace {

using Ints = Array<std::int64_t, 1>;
using Boxes = Array<std::int64_t, 2>;
using Floats = Array<double, 1>;

// A network's operators and the ways to cut them, checked once. It keeps the arrays that it views
// alive.
class CutProblem {
  public:
    CutProblem(Ints option_first, Ints piece_first, Ints need_first, Array<double, 2> alone,
        Floats link, Boxes made, Boxes needed, Ints source_first, Ints source, Floats fetch,
        Floats stream, double copied, Ints given, Ints room, std::int64_t mini_batches)
        : option_first_(option_first), piece_first_(piece_first), need_first_(need_first),
          source_first_(source_first), source_(source), given_(given), room_(room), alone_(alone),
          link_(link), fetch_(fetch), stream_(stream), made_(made), needed_(needed) {
        const std::size_t operators = given.size(), pieces = alone.shape(0), cores = alone.shape(1);
        require(cores >= 1 && fetch.size() == pieces && stream.size() == pieces &&
                link.size() == pieces && made.shape(0) == pieces,
            "cuts: arrays of different lengths");
        require(made.shape(1) == needed.shape(1) && made.shape(1) % 2 == 0,
            "cuts: boxes are pairs, of one rank");
        require(piece_first.size() >= 1, "piece_first: must end with the number of pieces");
        require_rows(option_first, operators, piece_first.size() - 1,
            "option_first: must rise to the number of options");
        require_rows(piece_first, piece_first.size() - 1, pieces,
            "piece_first: must rise to the number of pieces");
        require_rows(
            need_first, pieces, needed.shape(0), "need_first: must rise to the number of needs");
        require_rows(source_first, operators, source.size(),
            "source_first: must rise to the number of sources");
        for (std::size_t op : indices(operators)) {
            const std::int64_t sources = source_first.data()[op + 1] - source_first.data()[op];
            require(option_first.data()[op + 1] > option_first.data()[op],
                "option_first: every operator needs an option");
            for (std::int64_t i : row_of(source_first.data(), op))
                require(source.data()[i] >= 0 && source.data()[i] < static_cast<std::int64_t>(op),
                    "source: must come before its reader");
            for (std::int64_t o : row_of(option_first.data(), op)) {
                require(piece_first.data()[o + 1] > piece_first.data()[o],
                    "piece_first: every option needs a piece");
                for (std::int64_t p : row_of(piece_first.data(), o))
                    require(need_first.data()[p + 1] - need_first.data()[p] == sources,
                        "need_first: every piece needs a box of every source");
            }
        }
        require_finite(view(alone), "alone: must be finite and not negative");
        require_finite(view(link), "link: must be finite and not negative");
        require_finite(view(fetch), "fetch: must be finite and not negative");
        require_finite(view(stream), "stream: must be finite and not negative");
        require_below(view(given), std::int64_t{1} << 48, "given: must not be negative");
        require(std::isfinite(copied) && copied >= 0.0, "copied: must be finite and not negative");
        require(room.size() == operators, "room: needs one for every operator");
        require_below(view(room), std::int64_t{1} << 61, "room: must not be negative");
        require(mini_batches >= 1, "mini_batches: must be at least 1");
        network_ = {operators, cores, made.shape(1) / 2, static_cast<std::size_t>(mini_batches),
            view(option_first_), view(piece_first_), view(need_first_), view(alone_), view(link_),
            view(made_), view(needed_), view(source_first_), view(source_), view(fetch_),
            view(stream_), copied, view(given_), view(room_)};
    }

    std::vector<std::vector<std::int64_t>> improve(std::int64_t most) const {
        nb::gil_scoped_release release;
        return cutting::improve(network_, most);
    }

    double makespan(const Ints &option) const {
        require(option.size() == network_.operators, "option: needs one for every operator");
        for (std::size_t op : indices(network_.operators))
            require(option.data()[op] >= 0 &&
                    option.data()[op] < network_.option_first[op + 1] - network_.option_first[op],
                "option: there is no such one");
        nb::gil_scoped_release release;
        return cutting::PieceSimulator(network_).run(view(option)).end;
    }

  private:
    Ints option_first_, piece_first_, need_first_, source_first_, source_, given_, room_;
    Array<double, 2> alone_;
    Floats link_, fetch_, stream_;
    Boxes made_, needed_;
    cutting::Network network_;
};

// Operators in bands, checked once. It keeps the arrays that it views alive.
class BandProblem {
  public:
    BandProblem(Ints read_first, Ints read, Ints read_bytes, Ints write_first, Ints write,
        Ints bytes, Ints kind, Ints output, Boxes extent, Boxes step, Boxes rows, Boxes edge,
        Ints edges)
        : held_{read_first, read, read_bytes, write_first, write, bytes, kind, output, edges},
          held_axes_{extent, step, rows, edge},
          network_((require_indices(), view(read_first)), view(read), view(read_bytes),
              view(write_first), view(write), view(bytes), view(kind), view(output), axis(0),
              axis(1)) {
        require_below(view(bytes), std::int64_t{1} << 48, "bytes: must not be negative");
        require_below(view(read_bytes), std::int64_t{1} << 48, "read_bytes: must not be negative");
        require_below(view(kind), 3, "kind: there is no such one");
        require_below(view(output), 2, "output: is 0 or 1");
        require_below(view(edges), std::int64_t{1} << 31, "edges: must not be negative");
        require_below(view(extent), std::int64_t{1} << 31, "extent: must not be negative");
        std::int64_t covered = 0;
        for (const cutting::Axis &own : network_.axes) {
            for (const std::int64_t rows : own.rows) require(rows >= 1, "rows: must be at least 1");
            for (std::size_t op : indices(network_.operators)) {
                require(own.step[op] >= 1, "step: must be at least 1");
                for (std::int64_t k : row_of(network_.read_first, op)) {
                    const std::int64_t at = own.edge[k], length = 2 * (own.extent[op] + 1);
                    require(at >= -1, "edge: there is no such one");
                    require(at >= 0 || own.extent[op] == 0 ||
                            network_.kind[network_.read[k]] == cutting::weight,
                        "edge: needs those of all reads but weights");
                    if (at >= 0) covered = std::max(covered, at + length);
                }
            }
        }
        require(covered == std::ssize(edges), "edges: must end with those of a read");
    }

    // The ends of each operator's steps in a stack.
    std::vector<cutting::Ends> ends(
        std::int64_t first, std::int64_t last, std::int64_t bands, bool columns) const {
        return each(first, last, columns, bands, cutting::steps_of(bands), false);
    }

    // For each operator of a stack where its column tiles end, and where what no later column tile
    // needs does.
    std::pair<std::vector<cutting::Ends>, std::vector<cutting::Ends>> column_tiles(
        std::int64_t first, std::int64_t last, std::int64_t column_tiles, bool columns) const {
        return {each(first, last, columns, column_tiles, column_tiles, false),
            each(first, last, columns, column_tiles, column_tiles, true)};
    }

    nb::object best(std::pair<Ints, Ints> way_first, std::pair<Ints, Ints> bands,
        std::pair<Ints, Ints> channels, std::pair<Floats, Floats> beside,
        std::pair<Floats, Floats> alone, std::pair<Floats, Floats> refill, Ints by_channel,
        Ints plain_pieces, Floats plain_times, std::int64_t cores, std::int64_t alignment,
        double bytes_of_piece, double price, bool pipelined, Ints rooms, Ints column_tiles) const {
        const auto costs = [&](auto &first, auto &bands, auto &channels, auto &beside, auto &alone,
                               auto &refill) {
            require_rows(first, network_.operators, bands.size(),
                "way_first: must rise to the number of ways");
            std::int64_t cells = 0;
            for (std::size_t op : indices(network_.operators))
                cells += (first.data()[op + 1] - first.data()[op]) *
                    (network_.read_first[op + 1] - network_.read_first[op]);
            require(channels.size() == bands.size() && beside.size() == bands.size() &&
                    alone.size() == bands.size() && std::ssize(refill) == cells,
                "ways: arrays of different lengths");
            for (std::size_t w : indices(bands.size()))
                require(bands.data()[w] >= 1 && bands.data()[w] < (1 << 24) &&
                        channels.data()[w] >= 1 && channels.data()[w] < (1 << 24),
                    "ways: numbers of bands and channels are positive");
            return cutting::WayCosts{
                view(first), view(bands), view(channels), view(beside), view(alone), view(refill)};
        };
        const cutting::StackModel model{{costs(way_first.first, bands.first, channels.first,
                                             beside.first, alone.first, refill.first),
                                            costs(way_first.second, bands.second, channels.second,
                                                beside.second, alone.second, refill.second)},
            view(by_channel), view(plain_pieces), view(plain_times), cores, alignment,
            bytes_of_piece, price, pipelined};
        require(by_channel.size() == network_.read.size() &&
                plain_times.size() == network_.read.size() &&
                plain_pieces.size() == network_.operators,
            "model: arrays of different lengths");
        require(cores >= 1 && alignment >= 1 && rooms.size() >= 1, "model: out of range");
        require_below(view(rooms), std::int64_t{1} << 61, "rooms: must not be negative");
        for (std::size_t i : indices(column_tiles.size()))
            require(column_tiles.data()[i] >= 2, "column_tiles: at least 2");
        std::vector<cutting::StackChoice> found;
        {
            nb::gil_scoped_release release;
            found = cutting::best_stacks(network_, model, view(rooms), view(column_tiles));
        }
        nb::list answers;
        for (const cutting::StackChoice &choice : found) {
            nb::list stacks;
            for (const auto &[first, last, bands, columns, channels, column_tiles] : choice.stacks)
                stacks.append(nb::make_tuple(first, last, bands, columns, channels, column_tiles));
            answers.append(nb::make_tuple(stacks, choice.cost, choice.bytes, choice.seconds));
        }
        return answers;
    }

  private:
    // What the network is built by.
    void require_indices() const {
        const auto &[read_first, read, read_bytes, write_first, write, bytes, kind, output, edges] =
            held_;
        require(read_first.size() >= 1, "read_first: must rise to the number of reads");
        const std::size_t operators = read_first.size() - 1;
        const auto storages = std::ssize(bytes);
        require_rows(
            read_first, operators, read.size(), "read_first: must rise to the number of reads");
        require_rows(
            write_first, operators, write.size(), "write_first: must rise to the number of writes");
        require_below(view(read), storages, "read: there is no such storage");
        require_below(view(write), storages, "write: there is no such storage");
        require(read_bytes.size() == read.size() && kind.size() == bytes.size() &&
                output.size() == bytes.size(),
            "bands: arrays of different lengths");
        const std::size_t columns[] = {operators, operators, bytes.size(), read.size()};
        for (std::size_t i : indices(held_axes_.size()))
            require(held_axes_[i].shape(0) == 2 && held_axes_[i].shape(1) == columns[i],
                "bands: arrays of rows and columns of a wrong length");
    }

    cutting::Axis axis(int number) const {
        const auto row = [&](const Boxes &both) {
            return view(both).subspan(number * both.shape(1), both.shape(1));
        };
        return {row(held_axes_[0]), row(held_axes_[1]), row(held_axes_[2]), row(held_axes_[3]),
            view(held_[8])};
    }

    std::vector<cutting::Ends> each(std::int64_t first, std::int64_t last, bool columns,
        std::int64_t bands, std::int64_t steps, bool own) const {
        require(0 <= first && first < last && last <= std::int64_t(network_.operators) &&
                bands >= 1 && bands < (1 << 24),
            "stack: out of range");
        const cutting::Axis &axis = network_.axes[columns];
        std::vector<cutting::Ends> ends, found;
        for (std::int64_t op = last; op-- > first;) {
            require(axis.extent[op] > 0, "stack: an operator has no such rows");
            ends.push_back(network_.ends_of(axis, op, last, bands, steps, ends));
            found.push_back(own ? network_.own_of(axis, op, last, ends) : ends.back());
        }
        std::ranges::reverse(found);
        return found;
    }

    std::array<Ints, 9> held_;
    std::array<Boxes, 4> held_axes_;
    cutting::BandNetwork network_;
};

} // namespace

void bind_cutting(nb::module_ &module) {
    nb::class_<CutProblem>(module, "CutProblem")
        .def(nb::init<Ints, Ints, Ints, Array<double, 2>, Floats, Boxes, Boxes, Ints, Ints, Floats,
                 Floats, double, Ints, Ints, std::int64_t>(),
            nb::kw_only(), "option_first"_a, "piece_first"_a, "need_first"_a, "alone"_a, "link"_a,
            "made"_a, "needed"_a, "source_first"_a, "source"_a, "fetch"_a, "stream"_a, "copied"_a,
            "given"_a, "room"_a, "mini_batches"_a)
        .def("improve", &CutProblem::improve, "most"_a)
        .def("makespan", &CutProblem::makespan, "option"_a);
    nb::class_<BandProblem>(module, "BandProblem")
        .def(nb::init<Ints, Ints, Ints, Ints, Ints, Ints, Ints, Ints, Boxes, Boxes, Boxes, Boxes,
                 Ints>(),
            nb::kw_only(), "read_first"_a, "read"_a, "read_bytes"_a, "write_first"_a, "write"_a,
            "bytes"_a, "kind"_a, "output"_a, "extent"_a, "step"_a, "rows"_a, "edge"_a, "edges"_a)
        .def("ends", &BandProblem::ends, "first"_a, "last"_a, "bands"_a, "columns"_a)
        .def("column_tiles", &BandProblem::column_tiles, "first"_a, "last"_a, "column_tiles"_a,
            "columns"_a)
        .def("best", &BandProblem::best, nb::kw_only(), "way_first"_a, "bands"_a, "channels"_a,
            "beside"_a, "alone"_a, "refill"_a, "by_channel"_a, "plain_pieces"_a, "plain_times"_a,
            "cores"_a, "alignment"_a, "bytes_of_piece"_a, "price"_a, "pipelined"_a, "rooms"_a,
            "column_tiles"_a);
}
