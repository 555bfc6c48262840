// Penalties and min_tokens for Python, as addresses and sizes: weft.ops checks tensors and passes their pointers.
#include "kernels/sampling/penalties.h"

#include <nanobind/nanobind.h>

#include "bindings/bind.h"
#include "bindings/logits.h"
#include "kernels/sampling/suppress_ends.h"

namespace nb = nanobind;

namespace weft {
namespace {

PenalizeCall penalize_call(std::uintptr_t logits, int dtype, std::int64_t rows, std::int64_t vocab, std::int64_t stride,
                           const PenaltyTables &tables, std::uintptr_t slot, std::uintptr_t history_length,
                           std::uintptr_t extra, std::uintptr_t num_extra, std::int64_t extra_width,
                           std::uintptr_t d2t) {
  return {logits_of(logits, dtype, rows, vocab, stride),
          tables,
          pointer<const std::int64_t>(slot),
          pointer<const std::int64_t>(history_length),
          pointer<const std::int64_t>(extra),
          pointer<const std::int64_t>(num_extra),
          extra_width,
          pointer<const std::int64_t>(d2t)};
}

CountCall count_call(std::int64_t slots, std::int64_t vocab, std::int64_t history_width, std::uintptr_t counts,
                     std::uintptr_t history, std::int64_t rows, std::int64_t width, std::uintptr_t slot,
                     std::uintptr_t tokens, std::uintptr_t count, std::uintptr_t position) {
  return {slots,
          vocab,
          history_width,
          pointer<std::int32_t>(counts),
          pointer<std::int32_t>(history),
          rows,
          width,
          pointer<const std::int64_t>(slot),
          pointer<const std::int64_t>(tokens),
          pointer<const std::int64_t>(count),
          pointer<const std::int64_t>(position)};
}

SuppressCall suppress_call(std::uintptr_t logits, int dtype, std::int64_t rows, std::int64_t vocab, std::int64_t stride,
                           std::uintptr_t ends, std::uintptr_t until, std::int64_t slots, std::int64_t width,
                           std::uintptr_t slot, std::uintptr_t position) {
  return {logits_of(logits, dtype, rows, vocab, stride),
          pointer<const std::int32_t>(ends),
          pointer<const std::int64_t>(until),
          slots,
          width,
          pointer<const std::int64_t>(slot),
          pointer<const std::int64_t>(position)};
}

}  // namespace

void bind_penalties(nb::module_ &m) {
  nb::class_<PenaltyTables>(m, "PenaltyTables")
      .def("__init__",
           [](PenaltyTables *self, std::int64_t slots, std::int64_t vocab, std::int64_t bad_width,
              std::int64_t history_width, std::uintptr_t active, std::uintptr_t repetition, std::uintptr_t presence,
              std::uintptr_t frequency, std::uintptr_t counts, std::uintptr_t prompt, std::uintptr_t bias,
              std::uintptr_t biased, std::uintptr_t bad_words, std::uintptr_t history) {
             new (self) PenaltyTables{slots,
                                      vocab,
                                      bad_width,
                                      history_width,
                                      pointer<const std::int32_t>(active),
                                      pointer<const float>(repetition),
                                      pointer<const float>(presence),
                                      pointer<const float>(frequency),
                                      pointer<std::int32_t>(counts),
                                      pointer<const std::uint32_t>(prompt),
                                      pointer<const float>(bias),
                                      pointer<const std::int32_t>(biased),
                                      pointer<const std::int32_t>(bad_words),
                                      pointer<std::int32_t>(history)};
           });
  m.def("penalize_cpu",
        [](std::uintptr_t logits, int dtype, std::int64_t rows, std::int64_t vocab, std::int64_t stride,
           const PenaltyTables &tables, std::uintptr_t slot, std::uintptr_t history_length, std::uintptr_t extra,
           std::uintptr_t num_extra, std::int64_t extra_width, std::uintptr_t d2t, int threads) {
          const PenalizeCall call = penalize_call(logits, dtype, rows, vocab, stride, tables, slot, history_length,
                                                  extra, num_extra, extra_width, d2t);
          run(rows * vocab, [&] { penalize_cpu(call, threads); });
        });
  m.def("penalize_cuda",
        [](std::uintptr_t logits, int dtype, std::int64_t rows, std::int64_t vocab, std::int64_t stride,
           const PenaltyTables &tables, std::uintptr_t slot, std::uintptr_t history_length, std::uintptr_t extra,
           std::uintptr_t num_extra, std::int64_t extra_width, std::uintptr_t d2t, int sms, std::uintptr_t stream) {
          const PenalizeCall call = penalize_call(logits, dtype, rows, vocab, stride, tables, slot, history_length,
                                                  extra, num_extra, extra_width, d2t);
          const nb::gil_scoped_release release;
          return penalize_cuda(call, sms, pointer<void>(stream));
        });
  m.def("count_tokens_cpu",
        [](std::int64_t slots, std::int64_t vocab, std::int64_t history_width, std::uintptr_t counts,
           std::uintptr_t history, std::int64_t rows, std::int64_t width, std::uintptr_t slot, std::uintptr_t tokens,
           std::uintptr_t count, std::uintptr_t position) {
          count_tokens_cpu(
              count_call(slots, vocab, history_width, counts, history, rows, width, slot, tokens, count, position));
        });
  m.def("count_tokens_cuda",
        [](std::int64_t slots, std::int64_t vocab, std::int64_t history_width, std::uintptr_t counts,
           std::uintptr_t history, std::int64_t rows, std::int64_t width, std::uintptr_t slot, std::uintptr_t tokens,
           std::uintptr_t count, std::uintptr_t position, std::uintptr_t stream) {
          const CountCall call =
              count_call(slots, vocab, history_width, counts, history, rows, width, slot, tokens, count, position);
          const nb::gil_scoped_release release;
          return count_tokens_cuda(call, pointer<void>(stream));
        });

  m.def("suppress_ends_cpu", [](std::uintptr_t logits, int dtype, std::int64_t rows, std::int64_t vocab,
                                std::int64_t stride, std::uintptr_t ends, std::uintptr_t until, std::int64_t slots,
                                std::int64_t width, std::uintptr_t slot, std::uintptr_t position, int threads) {
    const SuppressCall call =
        suppress_call(logits, dtype, rows, vocab, stride, ends, until, slots, width, slot, position);
    run(rows * vocab, [&] { suppress_ends_cpu(call, threads); });
  });
  m.def("suppress_ends_cuda",
        [](std::uintptr_t logits, int dtype, std::int64_t rows, std::int64_t vocab, std::int64_t stride,
           std::uintptr_t ends, std::uintptr_t until, std::int64_t slots, std::int64_t width, std::uintptr_t slot,
           std::uintptr_t position, std::uintptr_t stream) {
          const SuppressCall call =
              suppress_call(logits, dtype, rows, vocab, stride, ends, until, slots, width, slot, position);
          const nb::gil_scoped_release release;
          return suppress_ends_cuda(call, pointer<void>(stream));
        });
}

}  // namespace weft
