#include "kernels/layer/attend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/layer/group.h"
#include "support/instruction_set.h"
#include "support/kernel_threads.h"

namespace weft {
namespace {

constexpr std::int64_t kTokenBlock = 16;  // new tokens of a row in one task

// The new tokens of one row: index of the first in the call, their number, and the position of the first in its text.
struct Tokens {
  std::int64_t row, first, count, position;
};

Tokens tokens_of(const AttendCall &call, std::int64_t b) {
  const std::int64_t first = call.starts ? call.starts[b] : b * call.width;
  const std::int64_t count = call.starts ? call.starts[b + 1] - first : call.width;
  return {b, first, count, call.base[b] + (call.count ? call.count[b] : 0) + call.offset};
}

// Returns the index of a position's entry in the cache, or -1 if it has none. Page 0 only pads a graph's rows, and
// positions beyond the page table have no page.
std::int64_t place_of(const AttendCall &call, std::int64_t b, std::int64_t position) {
  const std::int64_t column = position / call.page_size;
  if (column >= call.table_width) return -1;
  const std::int64_t page = call.page_table[b * call.table_width + column];
  return page > 0 ? page * call.page_size + position % call.page_size : -1;
}

// out = head, normalised with `norm` unless it is null, and rotated (RoPE).
WEFT_MULTIVERSION void rotate_head(const float *head, const float *norm, float eps, const float *rotary,
                                   std::int64_t size, float *out) {
  float scale = 1;
  if (norm) {
    float squares = 0;
    for (std::int64_t d = 0; d < size; ++d) squares += head[d] * head[d];
    scale = 1 / std::sqrt(squares / static_cast<float>(size) + eps);
  }
  for (std::int64_t d = 0; d < size; d += 2) {
    const float a = norm ? head[d] * scale * norm[d] : head[d];
    const float b = norm ? head[d + 1] * scale * norm[d + 1] : head[d + 1];
    const float cos = rotary[d], sin = rotary[d + 1];
    out[d] = a * cos - b * sin;
    out[d + 1] = a * sin + b * cos;
  }
}

const float *rotary_at(const AttendCall &call, std::int64_t position) {
  return call.rotary + std::min(position, call.rotary_rows - 1) * call.head_dim;
}

// Writes the keys and values of key head `h` for new tokens begin..end-1 of a row to the cache.
void write_keys(const AttendCall &call, const Tokens &tokens, std::int64_t h, std::int64_t begin, std::int64_t end) {
  const std::int64_t dim = call.head_dim, width = (call.heads + 2 * call.kv_heads) * dim;
  for (std::int64_t t = begin; t < end; ++t) {
    const std::int64_t position = tokens.position + t, place = place_of(call, tokens.row, position);
    if (place < 0) continue;
    const float *key = call.qkv + (tokens.first + t) * width + (call.heads + h) * dim;
    float *to = call.cache + (place * 2 * call.kv_heads + h) * dim;
    rotate_head(key, call.k_norm, call.eps, rotary_at(call, position), dim, to);
    std::memcpy(to + call.kv_heads * dim, key + call.kv_heads * dim, static_cast<std::size_t>(dim) * sizeof(float));
  }
}

// Working memory of a thread, kept from call to call.
struct Scratch {
  std::vector<const float *> tokens, queries;
  std::vector<float *> outs;
  std::vector<std::int64_t> lengths, starts;
  std::vector<float> rotated, keys, scores;
};

std::int64_t round_up(std::int64_t n) { return (n + kKeyTile - 1) / kKeyTile * kKeyTile; }

// Writes the addresses of key head `h`'s keys to `out`, for positions begin..end-1 of row `b`.
void point_to_keys(const AttendCall &call, std::int64_t b, std::int64_t h, std::int64_t begin, std::int64_t end,
                   const float **out) {
  const std::int64_t size = call.page_size, token = 2 * call.kv_heads * call.head_dim;
  const std::int32_t *pages = call.page_table + b * call.table_width;
  for (std::int64_t n = begin; n < end;) {
    const float *at = call.cache + (pages[n / size] * size + n % size) * token + h * call.head_dim;
    const std::int64_t last = std::min(n - n % size + size, end);
    for (; n < last; ++n, at += token) *out++ = at;
  }
}

// Computes attention for new tokens begin..end-1 of a row, for all query heads that share key head `h`.
//
// With a window, no query sees keys sinks..low-1. Whole tiles of these keys are skipped, `gap` keys in all. The others
// of them keep their places in their tiles, because the order of the sums must not change. Their pages may already
// belong to another row, so their addresses are replaced by that of a visible key.
void attend_block(const AttendCall &call, const Tokens &all, std::int64_t h, std::int64_t begin, std::int64_t end,
                  Scratch &scratch) {
  const std::int64_t dim = call.head_dim, group = call.heads / call.kv_heads, count = (end - begin) * group;
  const std::int64_t width = (call.heads + 2 * call.kv_heads) * dim;
  const std::int64_t longest = std::min(all.position + end, call.table_width * call.page_size);
  const std::int64_t sinks = call.window ? call.sinks : 0, reach = call.window ? call.window - sinks : longest;
  const std::int64_t low = std::max(std::min(all.position + begin + 1, longest) - reach, sinks);
  const std::int64_t gap = std::max<std::int64_t>(low / kKeyTile * kKeyTile - round_up(sinks), 0);
  const std::int64_t num_keys = longest - gap, stride = round_up(num_keys);
  const auto size = [](std::int64_t n) { return static_cast<std::size_t>(n); };
  scratch.queries.resize(size(count)), scratch.outs.resize(size(count));
  scratch.lengths.resize(size(count)), scratch.starts.resize(size(count));
  scratch.rotated.resize(size(count * dim)), scratch.keys.resize(size(dim * kKeyTile));
  scratch.tokens.resize(size(num_keys)), scratch.scores.resize(size(count * stride));
  const float **const tokens = scratch.tokens.data();
  point_to_keys(call, all.row, h, 0, std::min(sinks, longest), tokens);
  if (low < longest) {
    point_to_keys(call, all.row, h, low, longest, tokens + low - gap);
    std::fill(tokens + sinks, tokens + low - gap, tokens[low - gap]);
  }
  for (std::int64_t t = begin, m = 0; t < end; ++t) {
    const float *rotary = rotary_at(call, all.position + t);
    for (std::int64_t head = h * group; head < (h + 1) * group; ++head, ++m) {
      float *rotated = scratch.rotated.data() + m * dim;
      rotate_head(call.qkv + (all.first + t) * width + head * dim, call.q_norm, call.eps, rotary, dim, rotated);
      scratch.queries[size(m)] = rotated;
      scratch.outs[size(m)] = call.out + ((all.first + t) * call.heads + head) * dim;
      const std::int64_t length = std::min(all.position + t + 1, longest);
      scratch.lengths[size(m)] = length - gap;
      scratch.starts[size(m)] = std::max(length - reach, sinks) - gap;
    }
  }
  attend_group({scratch.queries.data(), scratch.lengths.data(), call.window ? scratch.starts.data() : nullptr, sinks,
                scratch.outs.data(), count, tokens, num_keys, call.kv_heads * dim, dim, call.scale, scratch.keys.data(),
                scratch.scores.data(), stride});
}

Scratch &thread_scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

// Whether a row only pads a graph's rows.
bool is_padding(const AttendCall &call, const Tokens &tokens) {
  const std::int64_t column = tokens.position / call.page_size;
  return column < call.table_width && call.page_table[tokens.row * call.table_width + column] == 0;
}

// Sets a row's outputs to zero, for all query heads that share key head `h`. Later operations compute padding rows too,
// and arbitrary numbers may take longer.
void clear_outputs(const AttendCall &call, const Tokens &tokens, std::int64_t h) {
  const std::int64_t group = call.heads / call.kv_heads * call.head_dim, width = call.heads * call.head_dim;
  for (std::int64_t t = 0; t < tokens.count; ++t)
    std::fill_n(call.out + (tokens.first + t) * width + h * group, group, 0.0f);
}

// The cost of attention of `count` tokens of a row for one key head.
std::int64_t attend_cost(const AttendCall &call, std::int64_t length, std::int64_t count) {
  const std::int64_t seen = call.window ? std::min(length, call.window + kTokenBlock) : length;
  return seen * call.head_dim * (4 + 2 * call.heads / call.kv_heads * count);
}

// Attention for rows of the same number of tokens, at most kTokenBlock: the tokens of a row and a key head are one
// task, which also writes their keys.
void attend_short(const AttendCall &call) {
  std::int64_t longest = 0;
  for (std::int64_t b = 0; b < call.rows; ++b) longest = std::max(longest, tokens_of(call, b).position + call.width);
  const std::int64_t heads = call.kv_heads;
  for_rows(call.rows * heads, call.threads, attend_cost(call, longest, call.width),
           [&](std::int64_t begin, std::int64_t end) {
             for (std::int64_t u = begin; u < end; ++u) {
               const Tokens tokens = tokens_of(call, u / heads);
               if (is_padding(call, tokens)) {
                 clear_outputs(call, tokens, u % heads);
                 continue;
               }
               write_keys(call, tokens, u % heads, 0, tokens.count);
               attend_block(call, tokens, u % heads, 0, tokens.count, thread_scratch());
             }
           });
}

// At most kTokenBlock new tokens of a row, `begin`..`end`-1.
struct Block {
  Tokens tokens;
  std::int64_t begin, end;
};

// Attention for rows of any number of tokens: a block of a row's tokens and a key head are one task. The keys of all
// rows are written first, because blocks of other workers read them.
void attend_blocks(const AttendCall &call) {
  static thread_local std::vector<Block> callers_blocks;
  std::vector<Block> &blocks = callers_blocks;  // the lambdas must not name a thread_local: it would be the worker's
  blocks.clear();
  std::int64_t cost = 0;
  for (std::int64_t b = 0; b < call.rows; ++b) {
    const Tokens tokens = tokens_of(call, b);
    if (tokens.count <= 0) continue;
    if (is_padding(call, tokens)) {
      for (std::int64_t h = 0; h < call.kv_heads && !call.starts; ++h) clear_outputs(call, tokens, h);
      continue;
    }
    for (std::int64_t begin = 0, end; begin < tokens.count; begin = end) {
      end = std::min(begin + kTokenBlock, tokens.count);
      blocks.push_back({tokens, begin, end});
      cost += attend_cost(call, tokens.position + end, end - begin);
    }
  }
  const auto num_blocks = static_cast<std::int64_t>(blocks.size());
  if (num_blocks == 0) return;
  const std::int64_t heads = call.kv_heads;
  for_rows(num_blocks * heads, call.threads, kTokenBlock * call.head_dim * 8,
           [&](std::int64_t begin, std::int64_t end) {
             for (std::int64_t u = begin; u < end; ++u) {
               const Block &block = blocks[static_cast<std::size_t>(u / heads)];
               write_keys(call, block.tokens, u % heads, block.begin, block.end);
             }
           });
  for_rows(num_blocks * heads, call.threads, cost / num_blocks, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t u = begin; u < end; ++u) {
      const Block &block = blocks[static_cast<std::size_t>(u / heads)];
      attend_block(call, block.tokens, u % heads, block.begin, block.end, thread_scratch());
    }
  });
}

}  // namespace

void attend_cpu(const AttendCall &call) {
  if (call.starts || call.width > kTokenBlock) return attend_blocks(call);
  attend_short(call);
}

}  // namespace weft
