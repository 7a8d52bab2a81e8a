// Buffers joined into blocks, so that fewer and larger ones remain to be packed.
#pragma once

#include "allocation/demands.hpp"
#include "common/random.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace loadmaster::allocation {

struct Joining {
    std::int64_t
        ceiling; // bytes: the load of the blocks stays below it wherever that of the buffers does
    double most_empty; // part of a block that may be empty
    std::uint64_t
        seed; // of what makes pairs seem worse than they are, so that another seed joins others
};

// Two buffers, or blocks, become one block, those first that leave the smallest part of it empty:
// what lives at about the same time lies on one another, what lives one after the other lies at the
// same address. A packing of the blocks is one of the buffers, and few blocks are quickly searched;
// but not every packing is one of blocks. Only buffers with one lifetime, all their bytes and no
// pin are joined. Time and memory grow with the square of their number.
class Blocks {
  public:
    Blocks(const Buffers &buffers, const Joining &joining);
    Buffers buffers() const { return made_.view(); }
    // Offsets of the buffers, from those of the blocks.
    std::vector<std::int64_t> offsets(std::span<const std::int64_t> of_blocks) const;

  private:
    struct Block {
        std::int32_t begin = 0, end = 0; // slots
        std::int64_t size = 0, alignment = 1;
        double area = 0;                      // bytes times instants, the empty ones included
        std::int32_t first = -1, second = -1; // what it is made of; none for a buffer
        std::int64_t rise = 0;                // of the second above the first
        bool apart = false;                   // is part of a larger block, or cannot be
    };
    struct Pair {
        double empty; // part of the block that they would make, as it seems
        std::int32_t first, second;
        bool operator>(const Pair &other) const;
    };

    void number_slots(const Buffers &buffers);
    void add_buffer(const Buffers &buffers, std::int64_t b);
    std::int32_t slot(std::int64_t instant) const;
    double area(const Block &block) const;
    Block together(std::int32_t first, std::int32_t second) const;
    void consider(std::int32_t first, std::int32_t second);
    bool claim(const Block &block);
    void join_all();
    void list_blocks(const Buffers &buffers);

    const Joining joining_;
    Random random_;
    std::vector<std::int64_t> instants_, load_; // at which slots begin, and the bytes in use then
    std::vector<Block> blocks_;                 // buffers first
    std::vector<Pair> pairs_;                   // a heap
    std::vector<std::int32_t> left_;            // what is part of no other
    OwnedBuffers made_;                         // the same
};

} // namespace loadmaster::allocation
