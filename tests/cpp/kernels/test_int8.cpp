// Products with rows in int8: the kernels of all instruction sets, with AMX's tiles in plain C++, have the bits of the
// plain kernels, for any number of rows. They read panels and rows to their ends and no further. This includes the
// source to call the kernels that the processor lacks.
// clang-format off
#include "tile_emulator.h"  // before the source
// clang-format on

#include <memory>
#include <random>
#include <vector>

#include "check.h"
#include "kernels/layer/int8.cpp"

namespace {

using namespace weft;

using Floats = std::vector<float>;

std::mt19937 g_random(7);

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

Floats normal(std::int64_t count) {
  std::normal_distribution<float> draw;
  Floats values(size(count));
  for (float &value : values) value = draw(g_random);
  return values;
}

// Memory that ends where its contents end, so that a sanitizer sees reads beyond.
struct Bytes {
  explicit Bytes(std::int64_t count) : from(static_cast<char *>(std::aligned_alloc(kLineBytes, size(count)))) {}
  char *get() const { return from.get(); }

 private:
  struct Free {
    void operator()(char *memory) const { std::free(memory); }
  };
  std::unique_ptr<char, Free> from;
};

// A panel of random codes, and scales that are small numbers.
Bytes random_panel(Format format, std::int64_t inputs) {
  const std::int64_t count = panel_bytes(format, Activations::kInt8, inputs), block = block_of(format).half_bytes;
  Bytes panel(count);
  for (std::int64_t i = 0; i < count; ++i) panel.get()[i] = static_cast<char>(g_random());
  const Int8Scales kind = int8_format(format).scales;
  const bool is_super = kind == Int8Scales::kSuper || kind == Int8Scales::kSuperOf16;
  for (std::int64_t b = 0; b < count; b += block) {
    char *scales = panel.get() + b + scales_at(format), *end = panel.get() + b + block;
    if (kind == Int8Scales::kFloat || kind == Int8Scales::kFloatAndZero) {
      for (int n = 0; n < 32; ++n) write_as(scales + 4 * n, 1e-5f * static_cast<float>(g_random() % 1000));
      for (char *zero = scales + 128; zero < end; ++zero) *zero = static_cast<char>(g_random() % 17);
    } else if (kind == Int8Scales::kExponent) {
      for (int n = 0; n < 32; ++n) scales[n] = static_cast<char>(n == 3 ? 0 : 100 + g_random() % 30);
    } else {
      for (char *half = scales + (is_super ? 512 : 0); half < end; half += 2)
        write_as(half, static_cast<std::uint16_t>(0x2000 | (g_random() & 0x83ff)));
    }
  }
  return panel;
}

// The product of rows with a panel, with a bias, for `valid` outputs.
Floats multiply(const Int8Kernels &kernels, Format format, const Floats &x, std::int64_t inputs, const char *panel,
                std::int64_t valid) {
  const PanelKernel &kernel = kernels.by_format[static_cast<int>(format)];
  const std::int64_t count = static_cast<std::int64_t>(x.size()) / inputs,
                     group = std::min(count, kernels.rows.max_group);
  Rows rows{x.data(), count, inputs, inputs, nullptr, nullptr, group, kernels.rows.bytes(group, inputs)};
  const Bytes prepared(groups_of(rows) * rows.group_bytes);
  std::memset(prepared.get(), 0xff, size(groups_of(rows) * rows.group_bytes));
  kernels.rows.prepare(rows, 0, groups_of(rows), prepared.get());
  rows.prepared = prepared.get();
  const Bytes scratch(ceil_div(4 * kernel.scratch(count, inputs), kLineBytes) * kLineBytes);
  const Floats bias(size(valid), 0.25f);
  Floats out(size(count * valid));
  kernel.times(rows, panel, reinterpret_cast<float *>(scratch.get()),
               {out.data(), valid, valid, bias.data(), nullptr, 0});
  return out;
}

void has_the_bits_of_plain(const Int8Kernels &kernels) {
  for (int f = 0; f < kNumFormats; ++f) {
    const auto format = static_cast<Format>(f);
    CHECK((kernels.by_format[f].times == nullptr) == (plain::kInt8Kernels.by_format[f].times == nullptr));
    if (!kernels.by_format[f].times) continue;
    const std::int64_t block = block_of(format).inputs;
    for (const std::int64_t inputs : {block, 3 * block, 9 * block - 13}) {
      const Bytes panel = random_panel(format, inputs);
      const Floats x = normal(41 * inputs);
      for (const std::int64_t valid : {64, 32, 17}) {
        const Floats all = multiply(plain::kInt8Kernels, format, x, inputs, panel.get(), valid);
        for (const std::int64_t count : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 15, 16, 17, 24, 27, 41}) {
          const std::int64_t first = 41 - count;
          const Floats some(x.begin() + first * inputs, x.end());
          const Floats out = multiply(kernels, format, some, inputs, panel.get(), valid);
          CAPTURE(f);
          CAPTURE(inputs);
          CAPTURE(valid);
          CAPTURE(count);
          REQUIRE(std::memcmp(out.data(), all.data() + first * valid, out.size() * sizeof(float)) == 0);
        }
      }
    }
  }
}

TEST_CASE("a row has the same bits alone and among others") { has_the_bits_of_plain(plain::kInt8Kernels); }

#if defined(WEFT_HAS_TARGETS)
TEST_CASE("AVX2" * doctest::skip(instruction_set() == InstructionSet::kPlain)) {
  has_the_bits_of_plain(avx2::kInt8Kernels);
}
TEST_CASE("VNNI" * doctest::skip(!has_vnni())) { has_the_bits_of_plain(vnni::kInt8Kernels); }
#endif

#if defined(WEFT_HAS_AMX)
TEST_CASE("AMX" * doctest::skip(!has_vnni())) { has_the_bits_of_plain(amx::kInt8Kernels); }
#endif

}  // namespace
