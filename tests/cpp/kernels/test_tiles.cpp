// The kernels for rounded activations against double precision, with AMX's tiles in plain C++. A row has the same bits
// alone and among others. These tests include the sources to call the kernels that the processor lacks.
// clang-format off
#include "tile_emulator.h"  // before the sources
// clang-format on

#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "check.h"
#include "kernels/layer/linear.cpp"
#include "kernels/layer/pack.h"

namespace {

using namespace weft;

using Floats = std::vector<float>;

std::mt19937 g_random(11);

Floats normal(std::int64_t count) {
  std::normal_distribution<float> draw;
  Floats values(size(count));
  for (float &value : values) value = draw(g_random);
  return values;
}

float rounded(float x) {
  BFloat16 narrowed;
  narrow(x, narrowed);
  return widen(narrowed);
}

// How kernels round an activation.
double once(float x) { return rounded(x); }
double twice(float x) { return rounded(x) + static_cast<double>(rounded(x - rounded(x))); }

// A product with bfloat16 weights in tiles.
struct Product {
  Product(std::int64_t rows, std::int64_t inputs, std::int64_t outputs)
      : rows(rows),
        inputs(inputs),
        outputs(outputs),
        x(normal(rows * inputs)),
        weights(normal(outputs * inputs)),
        panels(size(ceil_div(outputs, kPanel) * panel_bytes(Format::kBFloat16, Activations::kBFloat16, inputs) / 2)) {
    std::vector<std::uint16_t> narrowed;
    for (float &weight : weights) {
      weight = rounded(weight);
      narrowed.push_back(static_cast<std::uint16_t>(float_bits(weight) >> 16));
    }
    pack_cpu({narrowed.data(),
              2,
              {1, 1, outputs},
              {0, 0, inputs},
              inputs,
              panels.data(),
              0,
              panel_bytes(Format::kBFloat16, Activations::kBFloat16, inputs) / 2,
              true});
  }

  Floats times(const RoundedKernels &kernels) { return times(kernels, 0, rows); }

  // Multiplies rows first .. first + count - 1.
  Floats times(const RoundedKernels &kernels, std::int64_t first, std::int64_t count) {
    Floats out(size(count * outputs));
    LinearCall call{};
    call.x = x.data() + first * inputs, call.x_row = inputs;
    call.parts[0] = {panels.data(), Format::kBFloat16, Activations::kBFloat16, outputs}, call.num_parts = 1;
    call.out = out.data(), call.out_row = outputs;
    call.rows = count, call.inputs = inputs, call.outputs = outputs, call.threads = 2;
    multiply(call, {{kernels.panels}, {0}, {{&kernels.rows, nullptr}}, 1});
    return out;
  }

  // Multiplies all rows by these weights, and by the same ones in float32 below them, whose inputs are in `order`.
  Floats times_both(const RoundedKernels &kernels, const PanelKernel &of_floats, const Floats &wide,
                    const std::int32_t *order) {
    Floats out(size(rows * 2 * outputs));
    LinearCall call{};
    call.x = x.data(), call.x_row = inputs;
    call.parts[0] = {panels.data(), Format::kBFloat16, Activations::kBFloat16, outputs};
    call.parts[1] = {wide.data(), Format::kFloat32, Activations::kFloat32, outputs, order};
    call.num_parts = 2;
    call.out = out.data(), call.out_row = 2 * outputs;
    call.rows = rows, call.inputs = inputs, call.outputs = 2 * outputs, call.threads = 2;
    multiply(call, {{kernels.panels, of_floats}, {0, 1}, {{&kernels.rows, nullptr}, {nullptr, order}}, 2});
    return out;
  }

  std::int64_t rows, inputs, outputs;
  Floats x, weights;
  std::vector<std::uint16_t> panels;
};

void multiplies(const RoundedKernels &kernels, double (*round)(float)) {
  for (const std::int64_t inputs : {1, 31, 32, 33, 224, 515}) {
    Product product(inputs == 224 ? 150 : 50, inputs, 70);
    CAPTURE(inputs);
    const Floats out = product.times(kernels);
    for (std::int64_t m = 0; m < product.rows; ++m) {
      for (std::int64_t n = 0; n < product.outputs; ++n) {
        double expected = 0, bound = 0;
        for (std::int64_t i = 0; i < inputs; ++i) {
          const double term = round(product.x[size(m * inputs + i)]) * product.weights[size(n * inputs + i)];
          expected += term, bound += std::abs(term);
        }
        CAPTURE(m);
        CAPTURE(n);
        REQUIRE(std::abs(out[size(m * product.outputs + n)] - expected) <= 1e-6 * bound);
      }
    }
    for (const std::int64_t count : {1, 2, 7, 8, 9, 16, 17, 25, 33, 49}) {
      const std::int64_t first = product.rows - count;
      CAPTURE(count);
      const Floats some = product.times(kernels, first, count);
      REQUIRE(std::memcmp(some.data(), out.data() + first * product.outputs, some.size() * sizeof(float)) == 0);
    }
  }
}

// A part in float32 beside one that rounds rows leaves its bits as they are.
void multiplies_beside_floats(const RoundedKernels &kernels, const PanelKernel &of_floats) {
  for (const std::int64_t rows : {1, 7, 17, 50, 100}) {
    CAPTURE(rows);
    Product product(rows, 70, 70);
    Floats wide(size(ceil_div(product.outputs, kPanel) * kPanel * product.inputs));
    pack_cpu({product.weights.data(),
              4,
              {1, 1, product.outputs},
              {0, 0, product.inputs},
              product.inputs,
              wide.data(),
              0,
              kPanel * product.inputs,
              false});
    std::vector<std::int32_t> order(size(product.inputs));
    std::iota(order.rbegin(), order.rend(), 0);
    const Floats alone = product.times(kernels), both = product.times_both(kernels, of_floats, wide, nullptr);
    const Floats turned = product.times_both(kernels, of_floats, wide, order.data());
    for (std::int64_t m = 0; m < rows; ++m) {
      for (std::int64_t n = 0; n < product.outputs; ++n) {
        double expected = 0, reversed = 0, bound = 0;
        for (std::int64_t i = 0; i < product.inputs; ++i) {
          const float *row = &product.x[size(m * product.inputs)];
          const double weight = product.weights[size(n * product.inputs + i)];
          expected += row[i] * weight, reversed += row[product.inputs - 1 - i] * weight;
          bound += std::abs(weight) * 4;
        }
        const std::size_t first = size(m * 2 * product.outputs + n), second = first + size(product.outputs);
        REQUIRE(both[first] == alone[size(m * product.outputs + n)]);
        REQUIRE(turned[first] == both[first]);
        REQUIRE(std::abs(both[second] - expected) <= 1e-6 * bound);
        REQUIRE(std::abs(turned[second] - reversed) <= 1e-6 * bound);
      }
    }
  }
}

TEST_CASE("the emulator has the order of the processor") {
  // One tile of 1 row, 2 pairs of inputs and 1 output: 2^24 + (1 + -2^24) in the order of the manual.
  struct {
    std::uint8_t palette = 1, start = 0, reserved[14] = {};
    std::uint16_t bytes[16] = {4, 8, 4};
    std::uint8_t rows[16] = {1, 1, 2};
  } shapes;
  const auto bits = [](float x) { return static_cast<std::uint16_t>(float_bits(x) >> 16); };
  const std::uint16_t a[] = {bits(1), bits(-0x1p24f), bits(0x1p-126f), bits(1)};
  const std::uint16_t b[] = {bits(1), bits(1), bits(0.5f), bits(1)};
  float sum = 0x1p24f;
  _tile_loadconfig(&shapes);
  _tile_loadd(0, &sum, 4);
  _tile_loadd(1, a, 8);
  _tile_loadd(2, b, 4);
  _tile_dpbf16ps(0, 1, 2);
  _tile_stored(0, &sum, 4);
  CHECK(sum == 2);  // the even inputs give 1, the odd ones 1 - 2^24
  const std::int8_t p[] = {-1, 2, -3, 4, 5, -6, 7, -128};
  const std::uint8_t q[] = {255, 0, 1, 2, 3, 4, 5, 255};
  _tile_zero(0);
  _tile_loadd(1, p, 8);
  _tile_loadd(2, q, 4);
  _tile_dpbsud(0, 1, 2);
  std::int32_t count = 0;
  _tile_stored(0, &count, 4);
  CHECK(count == -255 - 3 + 8 + 15 - 24 + 35 - 128 * 255);
  CHECK_THROWS(_tile_dpbsud(0, 2, 1));
  _tile_release();
  CHECK_THROWS(_tile_zero(0));
}

bool has(InstructionSet set) { return instruction_set() >= set; }

TEST_CASE("plain code with bfloat16 activations") {
  multiplies(plain::kBFloat16, once);
  multiplies_beside_floats(plain::kBFloat16, plain::kVectorKernels.by_format[0]);
}

#if defined(WEFT_HAS_TARGETS)
TEST_CASE("AVX2 with bfloat16 activations" * doctest::skip(!has(InstructionSet::kAvx2))) {
  multiplies(avx2::kBFloat16, once);
}

TEST_CASE("AVX-512 with bfloat16 activations" * doctest::skip(!has(InstructionSet::kAvx512))) {
  multiplies(avx512::kBFloat16, once);
}

TEST_CASE("AVX2 and AVX-512 give the same bits" * doctest::skip(!has(InstructionSet::kAvx512))) {
  Product product(20, 515, 70);
  CHECK(product.times(avx2::kBFloat16) == product.times(avx512::kBFloat16));
}
#endif

#if defined(WEFT_HAS_BFLOAT16)
TEST_CASE("AVX-512 with pairs of bfloat16" * doctest::skip(!has(InstructionSet::kAvx512) || !has_fast_pairs())) {
  multiplies(pairs::kBFloat16, once);
  Product product(20, 515, 70);
  CHECK(product.times(pairs::kBFloat16) == product.times(avx512::kBFloat16));
}

TEST_CASE("AMX with bfloat16 activations" * doctest::skip(!has(InstructionSet::kAvx512))) {
  multiplies(amx::kBFloat16, once);
  multiplies_beside_floats(amx::kBFloat16, avx512::kVectorKernels.by_format[0]);
}

TEST_CASE("AMX with activations in two parts" * doctest::skip(!has(InstructionSet::kAvx512))) {
  multiplies(amx::kTwoBFloat16, twice);
  multiplies_beside_floats(amx::kTwoBFloat16, avx512::kVectorKernels.by_format[0]);
}
#endif

}  // namespace
