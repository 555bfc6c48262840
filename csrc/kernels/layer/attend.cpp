#include "kernels/layer/attend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/layer/group.h"
#include "support/kernel_threads.h"
#include "support/multiversion.h"

namespace weft {
namespace {

constexpr std::int64_t kTogether = 16;  // tokens of a row whose keys are written and read by one worker

// New tokens of one row: where they are in the call and in their text.
struct Tokens {
  std::int64_t row, first, count, position;  // of the first
};

Tokens tokens_of(const AttendCall &call, std::int64_t b) {
  const std::int64_t first = call.starts ? call.starts[b] : b * call.width;
  const std::int64_t count = call.starts ? call.starts[b + 1] - first : call.width;
  return {b, first, count, call.base[b] + (call.count ? call.count[b] : 0) + call.offset};
}

// The place of a position in the cache, -1 where nothing is written.
std::int64_t place_of(const AttendCall &call, std::int64_t b, std::int64_t position) {
  const std::int64_t column = position / call.page_size;
  if (column >= call.table_width) return -1;
  const std::int64_t page = call.page_table[b * call.table_width + column];
  return page > 0 ? page * call.page_size + position % call.page_size : -1;
}

// out = head, normed with `norm` if there is one, and rotated.
WEFT_MULTIVERSION void turn_head(const float *head, const float *norm, float eps, const float *rotary,
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

// Keys and values of one key head.
void write_keys(const AttendCall &call, const Tokens &tokens, std::int64_t h) {
  const std::int64_t dim = call.head_dim, width = (call.heads + 2 * call.kv_heads) * dim;
  for (std::int64_t t = 0; t < tokens.count; ++t) {
    const std::int64_t position = tokens.position + t, place = place_of(call, tokens.row, position);
    if (place < 0) continue;
    const float *key = call.qkv + (tokens.first + t) * width + (call.heads + h) * dim;
    float *to = call.cache + (place * 2 * call.kv_heads + h) * dim;
    turn_head(key, call.k_norm, call.eps, rotary_at(call, position), dim, to);
    std::memcpy(to + call.kv_heads * dim, key + call.kv_heads * dim, static_cast<std::size_t>(dim) * sizeof(float));
  }
}

// A worker's memory.
struct Room {
  std::vector<const float *> tokens, queries;
  std::vector<float *> outs;
  std::vector<std::int64_t> lengths, starts;
  std::vector<float> turned, keys, scores;
};

std::int64_t round_up(std::int64_t n) { return (n + kKeyTile - 1) / kKeyTile * kKeyTile; }

// out = where the keys of positions begin..end-1 of a row are, of key head `h`.
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

// Queries of tokens begin..end-1 of a row that share key head `h`.
//
// Keys from `sinks` to `low` are seen by none of them. Of these, whole tiles are left out, `gap` keys; in the place of
// others, whose pages may be another row's by now, stands one that is seen.
void attend_some(const AttendCall &call, const Tokens &all, std::int64_t h, std::int64_t begin, std::int64_t end,
                 Room &room) {
  const std::int64_t dim = call.head_dim, group = call.heads / call.kv_heads, count = (end - begin) * group;
  const std::int64_t width = (call.heads + 2 * call.kv_heads) * dim;
  const std::int64_t longest = std::min(all.position + end, call.table_width * call.page_size);
  const std::int64_t sinks = call.window ? call.sinks : 0, reach = call.window ? call.window - sinks : longest;
  const std::int64_t low = std::max(std::min(all.position + begin + 1, longest) - reach, sinks);
  const std::int64_t gap = std::max<std::int64_t>(low / kKeyTile * kKeyTile - round_up(sinks), 0);
  const std::int64_t num_keys = longest - gap, stride = round_up(num_keys);
  const auto size = [](std::int64_t n) { return static_cast<std::size_t>(n); };
  room.queries.resize(size(count)), room.outs.resize(size(count));
  room.lengths.resize(size(count)), room.starts.resize(size(count));
  room.turned.resize(size(count * dim)), room.keys.resize(size(dim * kKeyTile));
  room.tokens.resize(size(num_keys)), room.scores.resize(size(count * stride));
  const float **const tokens = room.tokens.data();
  point_to_keys(call, all.row, h, 0, std::min(sinks, longest), tokens);
  if (low < longest) {
    point_to_keys(call, all.row, h, low, longest, tokens + low - gap);
    std::fill(tokens + sinks, tokens + low - gap, tokens[low - gap]);
  }
  for (std::int64_t t = begin, m = 0; t < end; ++t) {
    const float *rotary = rotary_at(call, all.position + t);
    for (std::int64_t head = h * group; head < (h + 1) * group; ++head, ++m) {
      float *turned = room.turned.data() + m * dim;
      turn_head(call.qkv + (all.first + t) * width + head * dim, call.q_norm, call.eps, rotary, dim, turned);
      room.queries[size(m)] = turned;
      room.outs[size(m)] = call.out + ((all.first + t) * call.heads + head) * dim;
      const std::int64_t length = std::min(all.position + t + 1, longest);
      room.lengths[size(m)] = length - gap;
      room.starts[size(m)] = std::max(length - reach, sinks) - gap;
    }
  }
  attend_group({room.queries.data(), room.lengths.data(), call.window ? room.starts.data() : nullptr, sinks,
                room.outs.data(), count, tokens, num_keys, call.kv_heads * dim, dim, call.scale, room.keys.data(),
                room.scores.data(), stride});
}

Room &own_room() {
  static thread_local Room room;
  return room;
}

std::int64_t longest_text(const AttendCall &call, std::int64_t *longest_part) {
  std::int64_t longest = 0;
  *longest_part = 0;
  for (std::int64_t b = 0; b < call.rows; ++b) {
    const Tokens tokens = tokens_of(call, b);
    *longest_part = std::max(*longest_part, tokens.count);
    longest = std::max(longest, tokens.position + tokens.count);
  }
  return longest;
}

}  // namespace

void attend_cpu(const AttendCall &call) {
  std::int64_t most = 0;
  const std::int64_t longest = longest_text(call, &most);
  const std::int64_t group = call.heads / call.kv_heads, heads = call.kv_heads;
  const std::int64_t parts = std::max<std::int64_t>((most + kTogether - 1) / kTogether, 1);
  const bool writes_first = parts > 1;  // a part reads what others write
  if (writes_first) {
    for_rows(call.rows * heads, call.threads, most * call.head_dim * 8, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t u = begin; u < end; ++u) write_keys(call, tokens_of(call, u / heads), u % heads);
    });
  }
  const std::int64_t seen = call.window ? std::min(longest, call.window + kTogether) : longest;
  const std::int64_t cost = seen * call.head_dim * (4 + 2 * group * std::min(most, kTogether));
  for_rows(call.rows * heads * parts, call.threads, cost, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t u = begin; u < end; ++u) {
      const Tokens tokens = tokens_of(call, u / (heads * parts));
      const std::int64_t h = u / parts % heads, first = u % parts * kTogether;
      if (!writes_first) write_keys(call, tokens, h);
      const std::int64_t last = std::min(first + kTogether, tokens.count);
      if (first < last) attend_some(call, tokens, h, first, last, own_room());
    }
  });
}

}  // namespace weft
