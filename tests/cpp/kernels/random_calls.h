// Random arguments for kernel tests.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <random>
#include <vector>

#include "check.h"
#include "kernels/logits.h"

namespace weft {

inline std::mt19937_64 g_random(1);

inline std::int64_t any(std::int64_t low, std::int64_t high) {  // inclusive bounds
  return std::uniform_int_distribution<std::int64_t>(low, high)(g_random);
}
inline bool coin() { return any(0, 1) != 0; }
inline float uniform() { return std::uniform_real_distribution<float>()(g_random); }
template <class T>
T one_of(std::initializer_list<T> list) {
  return list.begin()[any(0, static_cast<std::int64_t>(list.size()) - 1)];
}

template <class T, class F>
std::vector<T> filled(std::int64_t size, F &&value) {
  std::vector<T> all(static_cast<std::size_t>(size));
  for (T &one : all) one = static_cast<T>(value());
  return all;
}

inline DType any_dtype() { return one_of({DType::kFloat32, DType::kFloat16, DType::kBFloat16}); }

// Logits with a random spread, alignment and stride. Some are blocked, infinite or NaN, and float16 logits may have any
// bit pattern.
class AnyLogits {
 public:
  AnyLogits(DType dtype, std::int64_t rows, std::int64_t vocab)
      : dtype_(dtype), rows_(rows), vocab_(vocab), first_(any(0, 4)), stride_(vocab + any(0, 5)) {
    const float spread = one_of({0.0f, 0.01f, 3.0f, 30.0f}), blocked = one_of({0.0f, 0.3f, 0.99f, 1.0f});
    std::normal_distribution<float> normal;
    storage_.resize(static_cast<std::size_t>(first_ + rows * stride_));
    auto *half = reinterpret_cast<std::uint16_t *>(storage_.data());
    for (std::size_t i = 0; i < storage_.size(); ++i) {
      float x = uniform() < blocked ? -INFINITY : spread * normal(g_random);
      if (any(0, 500) == 0) x = one_of({NAN, INFINITY, -0.0f});
      std::uint32_t bits;
      std::memcpy(&bits, &x, sizeof bits);
      if (dtype == DType::kFloat32) {
        storage_[i] = bits;
      } else {
        half[i] = static_cast<std::uint16_t>(dtype == DType::kBFloat16 ? bits >> 16 : g_random());
      }
    }
  }
  Logits view() {
    char *data = reinterpret_cast<char *>(storage_.data()) + first_ * (dtype_ == DType::kFloat32 ? 4 : 2);
    return {data, dtype_, rows_, vocab_, stride_};
  }
  bool operator==(const AnyLogits &other) const { return storage_ == other.storage_; }

 private:
  DType dtype_;
  std::int64_t rows_, vocab_, first_, stride_;
  std::vector<std::uint32_t> storage_;
};

inline void check_often(bool (*agrees)(), int times) {
  for (int i = 0; i < times; ++i) {
    CAPTURE(i);
    REQUIRE(agrees());
  }
}

}  // namespace weft
