// A 64-bit hash of a mask row, which a recording stores instead of the row. It is fast and not cryptographic: four
// lanes of 64-bit multiplications, each of which consumes 16 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace weft {

// Values that no hash takes. They stand for rows without a matcher's mask.
constexpr std::uint64_t kRowUnknown = 0;  // stale, or filled while nothing was recorded
constexpr std::uint64_t kRowEndOnly = 1;  // end tokens only

namespace row_hash_detail {

inline std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

inline std::uint64_t load(const char *bytes) {
  std::uint64_t value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

inline void block(std::uint64_t lanes[4], const char *bytes) {
  constexpr std::uint64_t kKeys[4] = {0xa0761d6478bd642full, 0xe7037ed1a0b428dbull, 0x8ebc6af09c88c6e3ull,
                                      0x589965cc75374cc3ull};
  for (int lane = 0; lane < 4; ++lane)
    lanes[lane] = mix(load(bytes + 16 * lane) ^ kKeys[lane], load(bytes + 16 * lane + 8) ^ lanes[lane]);
}

}  // namespace row_hash_detail

// Hashes a row of `words` words. Only `last_word_bits` of the last word are tokens; its other bits do not count.
// `is_applied` is the row's flag: whether the mask is applied.
inline std::uint64_t hash_row(const std::int32_t *row, int words, std::uint32_t last_word_bits, int is_applied) {
  constexpr int kBlock = 16;  // words
  using namespace row_hash_detail;
  std::uint64_t lanes[4] = {0x9e3779b97f4a7c15ull, 0xc2b2ae3d27d4eb4full, 0x165667b19e3779f9ull, 0x27d4eb2f165667c5ull};
  const int whole = (words - 1) / kBlock;  // the last word goes with the rest
  const auto *bytes = reinterpret_cast<const char *>(row);
  for (int i = 0; i < whole; ++i) block(lanes, bytes + static_cast<std::size_t>(i) * kBlock * sizeof *row);
  std::int32_t rest[kBlock] = {};
  const int left = words - whole * kBlock;
  std::memcpy(rest, row + static_cast<std::size_t>(whole) * kBlock, static_cast<std::size_t>(left) * sizeof *row);
  rest[left - 1] = static_cast<std::int32_t>(static_cast<std::uint32_t>(rest[left - 1]) & last_word_bits);
  block(lanes, reinterpret_cast<const char *>(rest));
  const std::uint64_t hash = mix(
      mix(lanes[0], lanes[1] ^ 0x2545f4914f6cdd1dull) ^ static_cast<std::uint64_t>(words),
      mix(lanes[2], lanes[3] ^ 0x9e6c63d0876a9a47ull) ^ (is_applied ? 0x5851f42d4c957f2dull : 0x14057b7ef767814full));
  return hash > kRowEndOnly ? hash : hash + 2;
}

}  // namespace weft
