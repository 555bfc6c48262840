// Sampling for Python, as addresses and sizes: weft.ops checks tensors and passes their pointers.
#include "kernels/sampling/sampling.h"

#include <nanobind/nanobind.h>

#include "bindings/bind.h"
#include "bindings/logits.h"
#include "kernels/sampling/truncation.h"

namespace nb = nanobind;

namespace weft {
namespace {

SampleCall sample_call(std::uintptr_t logits, int dtype, std::int64_t rows, std::int64_t vocab, std::int64_t stride,
                       std::uintptr_t temperature, std::uintptr_t seed, std::uintptr_t position, std::uintptr_t d2t,
                       std::uintptr_t floor, std::uintptr_t out) {
  return {logits_of(logits, dtype, rows, vocab, stride),
          pointer<const float>(temperature),
          pointer<const std::int64_t>(seed),
          pointer<const std::int64_t>(position),
          pointer<const std::int64_t>(d2t),
          pointer<const float>(floor),
          pointer<std::int64_t>(out)};
}

TruncateCall truncate_call(std::uintptr_t logits, int dtype, std::int64_t rows, std::int64_t vocab, std::int64_t stride,
                           std::uintptr_t temperature, std::uintptr_t top_k, std::uintptr_t top_p, std::uintptr_t min_p,
                           std::uintptr_t floor) {
  return {logits_of(logits, dtype, rows, vocab, stride),
          pointer<const float>(temperature),
          pointer<const std::int32_t>(top_k),
          pointer<const float>(top_p),
          pointer<const float>(min_p),
          pointer<float>(floor)};
}

}  // namespace

void bind_sampling(nb::module_ &m) {
  m.def("sample_cpu", [](std::uintptr_t logits, int dtype, std::int64_t rows, std::int64_t vocab, std::int64_t stride,
                         std::uintptr_t temperature, std::uintptr_t seed, std::uintptr_t position, std::uintptr_t d2t,
                         std::uintptr_t floor, std::uintptr_t out, int threads) {
    const SampleCall call =
        sample_call(logits, dtype, rows, vocab, stride, temperature, seed, position, d2t, floor, out);
    run(rows * vocab, [&] { sample_cpu(call, threads); });
  });
  m.def("sample_splits_cuda", &sample_splits_cuda);
  m.def("sample_cuda",
        [](std::uintptr_t logits, int dtype, std::int64_t rows, std::int64_t vocab, std::int64_t stride,
           std::uintptr_t temperature, std::uintptr_t seed, std::uintptr_t position, std::uintptr_t d2t,
           std::uintptr_t floor, std::uintptr_t out, int sms, std::uintptr_t workspace, std::uintptr_t stream) {
          const SampleCall call =
              sample_call(logits, dtype, rows, vocab, stride, temperature, seed, position, d2t, floor, out);
          const nb::gil_scoped_release release;
          return sample_cuda(call, sms, pointer<std::uint64_t>(workspace), pointer<void>(stream));
        });
  m.def("gumbel_noise_cpu", [](std::uintptr_t words, std::uintptr_t out, std::int64_t count) {
    gumbel_noise_cpu(pointer<const std::uint32_t>(words), pointer<float>(out), count);
  });

  m.def("truncation_floor_cpu", [](std::uintptr_t logits, int dtype, std::int64_t rows, std::int64_t vocab,
                                   std::int64_t stride, std::uintptr_t temperature, std::uintptr_t top_k,
                                   std::uintptr_t top_p, std::uintptr_t min_p, std::uintptr_t floor, int threads) {
    const TruncateCall call =
        truncate_call(logits, dtype, rows, vocab, stride, temperature, top_k, top_p, min_p, floor);
    run(rows * vocab, [&] { truncation_floor_cpu(call, threads); });
  });
  m.def("truncation_floor_cuda",
        [](std::uintptr_t logits, int dtype, std::int64_t rows, std::int64_t vocab, std::int64_t stride,
           std::uintptr_t temperature, std::uintptr_t top_k, std::uintptr_t top_p, std::uintptr_t min_p,
           std::uintptr_t floor, std::uintptr_t stream) {
          const TruncateCall call =
              truncate_call(logits, dtype, rows, vocab, stride, temperature, top_k, top_p, min_p, floor);
          const nb::gil_scoped_release release;
          return truncation_floor_cuda(call, pointer<void>(stream));
        });
}

}  // namespace weft
