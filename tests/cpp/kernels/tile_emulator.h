// AMX's tiles in plain C++, so that code for them is tested on processors that have only AVX-512. Include this before
// the code: its intrinsics then call the functions here. An instruction that would trap throws std::logic_error.
//
// Sums of bfloat16 products have the order and the rounding of Intel's manual (TDPBF16PS): for each output the even and
// the odd inputs of a tile are added apart, by fused multiply-adds, then both to the sum so far. Numbers below 2^-126
// count as 0, as inputs and as results.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "kernels/floats.h"

namespace weft::test {

class Tiles {
 public:
  static constexpr int kTiles = 8, kMaxRows = 16, kMaxBytes = 64;  // of palette 1

  void configure(const void *from) {
    struct {
      std::uint8_t palette, start, reserved[14];
      std::uint16_t bytes[16];
      std::uint8_t rows[16];
    } config;
    static_assert(sizeof config == 64);
    std::memcpy(&config, from, sizeof config);
    require(config.palette == 1 && config.start == 0, "palette 1 from row 0 on");
    for (const std::uint8_t byte : config.reserved) require(byte == 0, "reserved bytes are 0");
    for (int t = 0; t < 16; ++t) {
      const bool is_unused = config.bytes[t] == 0 && config.rows[t] == 0;
      require(t < kTiles || is_unused, "there are 8 tiles");
      require((config.bytes[t] == 0) == (config.rows[t] == 0), "a tile has rows and bytes, or neither");
      require(config.bytes[t] <= kMaxBytes && config.rows[t] <= kMaxRows, "a tile has at most 16 rows of 64 bytes");
      if (t < kTiles) tiles_[t] = Tile{config.rows[t], config.bytes[t], {}};
    }
  }

  void release() {
    for (Tile &tile : tiles_) tile = {};
  }

  void zero(int tile) { std::memset(used(tile).data, 0, sizeof tiles_[tile].data); }

  void load(int tile, const void *from, std::int64_t stride) {
    zero(tile);
    for (int row = 0; row < used(tile).rows; ++row)
      std::memcpy(tiles_[tile].data[row], static_cast<const char *>(from) + row * stride, size(tiles_[tile].bytes));
  }

  void store(int tile, void *to, std::int64_t stride) {
    for (int row = 0; row < used(tile).rows; ++row)
      std::memcpy(static_cast<char *>(to) + row * stride, tiles_[tile].data[row], size(tiles_[tile].bytes));
  }

  void multiply_bfloat16(int sums, int a, int b) {
    check_shapes(sums, a, b);
    for (int m = 0; m < tiles_[sums].rows; ++m) {
      for (int n = 0; n < tiles_[sums].bytes / 4; ++n) {
        float even = 0, odd = 0;
        for (int k = 0; k < tiles_[b].rows; ++k) {
          even = flushed(std::fma(bfloat16(a, m, 2 * k), bfloat16(b, k, 2 * n), even));
          odd = flushed(std::fma(bfloat16(a, m, 2 * k + 1), bfloat16(b, k, 2 * n + 1), odd));
        }
        auto &sum = at<float>(sums, m, n);
        sum = flushed(flushed(sum) + flushed(even + odd));
      }
    }
  }

  // Multiplies bytes of type A by bytes of type B, in groups of four.
  template <class A, class B>
  void multiply_bytes(int sums, int a, int b) {
    check_shapes(sums, a, b);
    for (int m = 0; m < tiles_[sums].rows; ++m) {
      for (int n = 0; n < tiles_[sums].bytes / 4; ++n) {
        std::int64_t sum = at<std::int32_t>(sums, m, n);
        for (int k = 0; k < tiles_[b].rows; ++k)
          for (int i = 0; i < 4; ++i) sum += at<A>(a, m, 4 * k + i) * at<B>(b, k, 4 * n + i);
        at<std::int32_t>(sums, m, n) = static_cast<std::int32_t>(sum);  // without saturation
      }
    }
  }

  static float flushed(float value) {
    return std::abs(value) < std::numeric_limits<float>::min() ? std::copysign(0.0f, value) : value;
  }

 private:
  struct Tile {
    int rows = 0, bytes = 0;
    alignas(64) std::uint8_t data[kMaxRows][kMaxBytes] = {};
  };

  static std::size_t size(int count) { return static_cast<std::size_t>(count); }

  static void require(bool holds, const char *rule) {
    if (!holds) throw std::logic_error(rule);
  }

  Tile &used(int tile) {
    require(tile >= 0 && tile < kTiles && tiles_[tile].rows > 0, "a tile is configured before it is used");
    return tiles_[tile];
  }

  void check_shapes(int sums, int a, int b) {
    require(sums != a && sums != b && a != b, "three tiles");
    require(used(sums).rows == used(a).rows && used(sums).bytes == used(b).bytes && used(a).bytes == 4 * used(b).rows,
            "the shapes of a product's tiles fit");
  }

  template <class T>
  T &at(int tile, int row, int column) {
    return reinterpret_cast<T *>(tiles_[tile].data[row])[column];
  }

  float bfloat16(int tile, int row, int column) {
    const std::uint32_t bits = static_cast<std::uint32_t>(at<std::uint16_t>(tile, row, column)) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return flushed(value);
  }

  Tile tiles_[kTiles];
};

inline Tiles &tiles() {
  static thread_local Tiles of_thread;
  return of_thread;
}

// VCVTNEPS2BF16, which processors with AMX have too: rounds to nearest even, and numbers below 2^-126 to 0.
__attribute__((target("avx512f"))) inline __m256bh narrowed(__m512 values) {
  float from[16];
  BFloat16 to[16];
  std::memcpy(from, &values, sizeof from);
  for (int k = 0; k < 16; ++k) narrow(Tiles::flushed(from[k]), to[k]);
  __m256bh result;
  std::memcpy(&result, to, sizeof result);
  return result;
}

}  // namespace weft::test

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbusd
#undef _tile_dpbsud
#define _tile_loadconfig(from) ::weft::test::tiles().configure(from)
#define _tile_release() ::weft::test::tiles().release()
#define _tile_zero(tile) ::weft::test::tiles().zero(tile)
#define _tile_loadd(tile, from, stride) ::weft::test::tiles().load(tile, from, stride)
#define _tile_stored(tile, to, stride) ::weft::test::tiles().store(tile, to, stride)
#define _tile_dpbf16ps(sums, a, b) ::weft::test::tiles().multiply_bfloat16(sums, a, b)
#define _tile_dpbusd(sums, a, b) ::weft::test::tiles().multiply_bytes<std::uint8_t, std::int8_t>(sums, a, b)
#define _tile_dpbsud(sums, a, b) ::weft::test::tiles().multiply_bytes<std::int8_t, std::uint8_t>(sums, a, b)
#define _mm512_cvtneps_pbh(values) ::weft::test::narrowed(values)
