#include "kernels/layer/attend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/layer/group.h"
#include "kernels/vector_exp.h"
#include "support/instruction_set.h"
#include "support/kernel_threads.h"

namespace weft {
namespace {

constexpr std::int64_t kTokenBlock = 16;  // new tokens of a row in one task
constexpr std::int64_t kMostHeads = 32;   // query heads in one task

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

std::int64_t bytes_of(CachedType type) {
  constexpr std::int64_t kBytes[] = {4, 2, 2, 1, 1};
  return kBytes[static_cast<int>(type)];
}

// Returns 1 / sqrt(mean(x^2) + eps) over `size` floats.
WEFT_MULTIVERSION float norm_scale(const float *x, std::int64_t size, float eps) {
  float squares = 0;
  for (std::int64_t d = 0; d < size; ++d) squares += x[d] * x[d];
  return 1 / std::sqrt(squares / static_cast<float>(size) + eps);
}

// out = head * scale * norm unless `norm` is null, with `pairs` pairs of dimensions from `first` on rotated (RoPE).
WEFT_MULTIVERSION void rotate_head(const float *head, const float *norm, float scale, const float *rotary,
                                   std::int64_t first, std::int64_t pairs, std::int64_t size, float *out) {
  const std::int64_t last = first + 2 * pairs;
  for (std::int64_t d = 0; d < first; ++d) out[d] = norm ? head[d] * scale * norm[d] : head[d];
  for (std::int64_t d = first; d < last; d += 2) {
    const float a = norm ? head[d] * scale * norm[d] : head[d];
    const float b = norm ? head[d + 1] * scale * norm[d + 1] : head[d + 1];
    const float cos = rotary[d - first], sin = rotary[d - first + 1];
    out[d] = a * cos - b * sin;
    out[d + 1] = a * sin + b * cos;
  }
  for (std::int64_t d = last; d < size; ++d) out[d] = norm ? head[d] * scale * norm[d] : head[d];
}

// out = out * sigmoid(gate)
WEFT_MULTIVERSION void multiply_by_gate(const float *gate, std::int64_t size, float *out) {
  for (std::int64_t d = 0; d < size; ++d) out[d] = times_sigmoid(out[d], gate[d]);
}

// The norm of the queries or of the keys of one token.
class HeadNorm {
 public:
  // `all` are the token's queries or keys; `size` is that of one of them. `weight` may be null.
  HeadNorm(const float *weight, std::int64_t heads, const float *all, std::int64_t size, float eps)
      : weight_(weight), all_(all), size_(size), eps_(eps), is_joint_(heads > 1) {
    if (weight && is_joint_) scale_ = norm_scale(all, heads * size, eps);
  }

  // Writes head `h`, normalised and rotated, to `out`.
  void operator()(const AttendCall &call, std::int64_t h, const float *rotary, float *out) const {
    const float *head = all_ + h * size_;
    const float *weight = weight_ && is_joint_ ? weight_ + h * size_ : weight_;
    const float scale = weight && !is_joint_ ? norm_scale(head, size_, eps_) : scale_;
    rotate_head(head, weight, scale, rotary, call.first_rotated, call.rotary_pairs, size_, out);
  }

 private:
  const float *weight_, *all_;
  const std::int64_t size_;
  const float eps_;
  const bool is_joint_;
  float scale_ = 1;
};

const float *rotary_at(const AttendCall &call, std::int64_t position) {
  return call.rotary + std::min(position, call.rotary_rows - 1) * 2 * call.rotary_pairs;
}

template <class Code>
WEFT_MULTIVERSION void narrow_all(const float *from, std::int64_t size, Code *to) {
  for (std::int64_t d = 0; d < size; ++d) narrow(from[d], to[d]);
}

// Rounds to codes of a common scale. If a number is infinite or NaN, the scale is NaN.
WEFT_MULTIVERSION void narrow_all(const float *from, std::int64_t size, Int8 *to, BFloat16 *scale) {
  std::uint32_t largest = 0;
  for (std::int64_t d = 0; d < size; ++d) largest = std::max(largest, float_bits(from[d]) & 0x7fffffffu);
  if (largest >= 0x7f800000u) {
    scale->bits = 0x7fc0;
    return std::memset(to, 0, static_cast<std::size_t>(size)), void();
  }
  // Rounded up, so that no code is beyond 127.
  scale->bits = static_cast<std::uint16_t>((float_bits(bits_float(largest) * (1 / 127.0f)) + 0xffffu) >> 16);
  const float factor = widen(*scale) > 0x1p-100f ? 1 / widen(*scale) : 0;
  for (std::int64_t d = 0; d < size; ++d)
    to[d].code = static_cast<std::int8_t>(std::clamp(static_cast<int>(std::lrint(from[d] * factor)), -127, 127));
}

// Writes `size` numbers to the cache, and in int8 their scale.
void write_numbers(CachedType type, const float *from, std::int64_t size, char *to, char *scale) {
  switch (type) {
    case CachedType::kFloat32:
      std::memcpy(to, from, static_cast<std::size_t>(size) * sizeof(float));
      break;
    case CachedType::kFloat16:
      narrow_all(from, size, reinterpret_cast<Half *>(to));
      break;
    case CachedType::kBFloat16:
      narrow_all(from, size, reinterpret_cast<BFloat16 *>(to));
      break;
    case CachedType::kFloat8:
      narrow_all(from, size, reinterpret_cast<Float8 *>(to));
      break;
    case CachedType::kInt8:
      narrow_all(from, size, reinterpret_cast<Int8 *>(to), reinterpret_cast<BFloat16 *>(scale));
  }
}

// Working memory of a thread, kept from call to call.
struct Scratch {
  std::vector<const char *> tokens;
  std::vector<const float *> queries;
  std::vector<float *> outs;
  std::vector<std::int64_t> lengths, starts;
  std::vector<float> rotated, keys, scores, sink_logits;
};

Scratch &thread_scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

// Writes the keys and values of key head `h` for new tokens begin..end-1 of a row to the cache.
void write_keys(const AttendCall &call, const Tokens &tokens, std::int64_t h, std::int64_t begin, std::int64_t end) {
  const std::int64_t dim = call.key_size, bytes = bytes_of(call.type);
  const std::int64_t scales = call.scales + h * std::int64_t{sizeof(BFloat16)};
  std::vector<float> &key = thread_scratch().rotated;
  key.resize(std::max(key.size(), static_cast<std::size_t>(dim)));
  for (std::int64_t t = begin; t < end; ++t) {
    const std::int64_t position = tokens.position + t, place = place_of(call, tokens.row, position);
    if (place < 0) continue;
    const float *keys = call.qkv + (tokens.first + t) * call.qkv_row + call.heads * dim;
    char *to = call.cache + place * call.token_bytes;
    const HeadNorm norm(call.k_norm, call.k_norm_heads, keys, dim, call.eps);
    norm(call, h, rotary_at(call, position), key.data());
    write_numbers(call.type, key.data(), dim, to + h * dim * bytes, to + scales);
    if (!call.values) continue;
    const std::int64_t size = call.value_size;
    write_numbers(call.type, keys + call.kv_heads * dim + h * size, size, to + call.values + h * size * bytes,
                  to + scales + call.kv_heads * std::int64_t{sizeof(BFloat16)});
  }
}

std::int64_t round_up(std::int64_t n) { return (n + kKeyTile - 1) / kKeyTile * kKeyTile; }

// Writes the addresses of key head `h`'s keys to `out`, for positions begin..end-1 of row `b`.
void point_to_keys(const AttendCall &call, std::int64_t b, std::int64_t h, std::int64_t begin, std::int64_t end,
                   const char **out) {
  const std::int64_t size = call.page_size, token = call.token_bytes;
  const std::int32_t *pages = call.page_table + b * call.table_width;
  for (std::int64_t n = begin; n < end;) {
    const char *at = call.cache + (pages[n / size] * size + n % size) * token + h * call.key_size * bytes_of(call.type);
    const std::int64_t last = std::min(n - n % size + size, end);
    for (; n < last; ++n, at += token) *out++ = at;
  }
}

// A range of the query heads that share a key head.
struct Heads {
  std::int64_t key_head, begin, end;
};

// The number of tasks into which the query heads of a key head are divided. With more of them, more threads can attend
// from one token; with fewer, each key is read less often.
std::int64_t parts_of_group(const AttendCall &call) {
  return (call.heads / call.kv_heads + kMostHeads - 1) / kMostHeads;
}

// The heads of part `part`, numbered over all key heads.
Heads heads_of(const AttendCall &call, std::int64_t part) {
  const std::int64_t group = call.heads / call.kv_heads, parts = parts_of_group(call);
  const std::int64_t h = part / parts, first = part % parts * kMostHeads;
  return {h, h * group + first, h * group + std::min(first + kMostHeads, group)};
}

// Computes attention for new tokens begin..end-1 of a row, for some query heads.
//
// With a window, no query sees keys sinks..low-1. Whole tiles of these keys are skipped, `gap` keys in all. The others
// of them keep their places in their tiles, because the order of the sums must not change. Their pages may already
// belong to another row, so their addresses are replaced by that of a visible key.
void attend_block(const AttendCall &call, const Tokens &all, const Heads &heads, std::int64_t begin, std::int64_t end,
                  Scratch &scratch) {
  const std::int64_t dim = call.key_size, h = heads.key_head, count = (end - begin) * (heads.end - heads.begin);
  const std::int64_t bytes = bytes_of(call.type);
  const std::int64_t values = call.values ? call.values + h * (call.value_size - dim) * bytes : 0;
  const std::int64_t key_scale = call.scales + h * (std::int64_t{sizeof(BFloat16)} - dim * bytes);
  const std::int64_t value_scale = key_scale + (call.values ? call.kv_heads * std::int64_t{sizeof(BFloat16)} : 0);
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
  scratch.sink_logits.resize(call.sink_logits ? size(count) : 0);
  const char **const tokens = scratch.tokens.data();
  point_to_keys(call, all.row, h, 0, std::min(sinks, longest), tokens);
  if (low < longest) {
    point_to_keys(call, all.row, h, low, longest, tokens + low - gap);
    std::fill(tokens + sinks, tokens + low - gap, tokens[low - gap]);
  }
  for (std::int64_t t = begin, m = 0; t < end; ++t) {
    const float *rotary = rotary_at(call, all.position + t);
    const HeadNorm norm(call.q_norm, call.q_norm_heads, call.qkv + (all.first + t) * call.qkv_row, dim, call.eps);
    for (std::int64_t head = heads.begin; head < heads.end; ++head, ++m) {
      float *rotated = scratch.rotated.data() + m * dim;
      norm(call, head, rotary, rotated);
      scratch.queries[size(m)] = rotated;
      scratch.outs[size(m)] = call.out + ((all.first + t) * call.heads + head) * call.value_size;
      if (call.sink_logits) scratch.sink_logits[size(m)] = call.sink_logits[head];
      const std::int64_t length = std::min(all.position + t + 1, longest);
      scratch.lengths[size(m)] = length - gap;
      scratch.starts[size(m)] = length - reach > sinks ? length - reach - gap : -1;
    }
  }
  attend_group({scratch.queries.data(),
                scratch.lengths.data(),
                call.window ? scratch.starts.data() : nullptr,
                sinks,
                scratch.outs.data(),
                count,
                tokens,
                call.type,
                num_keys,
                values,
                key_scale,
                value_scale,
                dim,
                call.value_size,
                call.scale,
                call.softcap,
                call.sink_logits ? scratch.sink_logits.data() : nullptr,
                scratch.keys.data(),
                scratch.scores.data(),
                stride});
  if (!call.gate) return;
  for (std::int64_t t = begin, m = 0; t < end; ++t) {
    const float *gate = call.gate + (all.first + t) * call.gate_row;
    for (std::int64_t head = heads.begin; head < heads.end; ++head, ++m)
      multiply_by_gate(gate + head * call.value_size, call.value_size, scratch.outs[size(m)]);
  }
}

// Whether a row only pads a graph's rows.
bool is_padding(const AttendCall &call, const Tokens &tokens) {
  const std::int64_t column = tokens.position / call.page_size;
  return column < call.table_width && call.page_table[tokens.row * call.table_width + column] == 0;
}

// Sets a row's outputs to zero, for all query heads that share key head `h`. Later operations compute padding rows too,
// and arbitrary numbers may take longer.
void clear_outputs(const AttendCall &call, const Tokens &tokens, std::int64_t h) {
  const std::int64_t group = call.heads / call.kv_heads * call.value_size, width = call.heads * call.value_size;
  for (std::int64_t t = 0; t < tokens.count; ++t)
    std::fill_n(call.out + (tokens.first + t) * width + h * group, group, 0.0f);
}

// The cost of attention of `count` tokens of a row for one key head, or one part of its query heads.
std::int64_t attend_cost(const AttendCall &call, std::int64_t length, std::int64_t count) {
  const std::int64_t seen = call.window ? std::min(length, call.window + kTokenBlock) : length;
  const std::int64_t size = (call.key_size + call.value_size) / 2;
  return seen * size * (4 + 2 * std::min(call.heads / call.kv_heads, kMostHeads) * count);
}

// Attention for rows of the same number of tokens, at most kTokenBlock, and at most kMostHeads queries for a key head:
// the tokens of a row and a key head are one task, which also writes their keys.
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
               attend_block(call, tokens, heads_of(call, u % heads), 0, tokens.count, thread_scratch());
             }
           });
}

// At most kTokenBlock new tokens of a row, `begin`..`end`-1.
struct Block {
  Tokens tokens;
  std::int64_t begin, end;
};

// Attention for any rows and heads: a block of a row's tokens and a part of the heads are one task. The keys of all
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
  const std::int64_t heads = call.kv_heads, parts = heads * parts_of_group(call);
  for_rows(num_blocks * heads, call.threads, kTokenBlock * call.key_size * 8,
           [&](std::int64_t begin, std::int64_t end) {
             for (std::int64_t u = begin; u < end; ++u) {
               const Block &block = blocks[static_cast<std::size_t>(u / heads)];
               write_keys(call, block.tokens, u % heads, block.begin, block.end);
             }
           });
  for_rows(num_blocks * parts, call.threads, cost / num_blocks, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t u = begin; u < end; ++u) {
      const Block &block = blocks[static_cast<std::size_t>(u / parts)];
      attend_block(call, block.tokens, heads_of(call, u % parts), block.begin, block.end, thread_scratch());
    }
  });
}

}  // namespace

void attend_cpu(const AttendCall &call) {
  if (call.starts || call.width > kTokenBlock || parts_of_group(call) > 1) return attend_blocks(call);
  attend_short(call);
}

}  // namespace weft
