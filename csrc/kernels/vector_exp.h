// exp, the sigmoid function and tanh in float32, written so that the compiler vectorises loops over them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace weft {

// exp(x) to 2 units in the last place for x in [-87, 88]; x is clamped to that range.
[[gnu::always_inline]] inline float vector_exp(float x) {
  x = std::min(std::max(x, -87.0f), 88.0f);
  const float whole = std::rint(x * 0x1.715476p+0f);  // in units of log 2
  const float rest = (x - whole * 0x1.62e400p-1f) - whole * 0x1.7f7d1cp-20f;
  float p = 0x1.a0d2cep-13f;  // a Taylor series with its last coefficients fitted to |rest| <= log(2) / 2
  p = p * rest + 0x1.6e8a3cp-10f;
  p = p * rest + 0x1.111100p-7f;
  p = p * rest + 0x1.5554a8p-5f;
  p = p * rest + 0x1.555556p-3f;
  p = p * rest + 0.5f;
  p = p * rest * rest + rest + 1.0f;
  const std::int32_t bits = (static_cast<std::int32_t>(whole) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return p * power;
}

// value * sigmoid(x).
[[gnu::always_inline]] inline float times_sigmoid(float value, float x) { return value / (1 + vector_exp(-x)); }

[[gnu::always_inline]] inline float sigmoid(float x) { return times_sigmoid(1, x); }

// tanh(x) to 3 units in the last place.
[[gnu::always_inline]] inline float vector_tanh(float x) {
  const float square = x * x;
  float p = -0x1.226e36p-7f;  // the Taylor series, for small |x|, where the fraction below would lose digits
  p = p * square + 0x1.664f48p-6f;
  p = p * square - 0x1.ba1ba2p-5f;
  p = p * square + 0x1.111112p-3f;
  p = p * square - 0x1.555556p-2f;
  const float fade = vector_exp(-2 * std::fabs(x));
  const float fraction = std::copysign((1 - fade) / (1 + fade), x);
  return square < 0x1.7p-4f ? x + x * square * p : fraction;
}

}  // namespace weft
