// Sampling by slot for Python, as addresses and sizes: weft.ops checks tensors and passes their pointers.
#include "kernels/sampling/slots.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/unique_ptr.h>

#include "bindings/bind.h"
#include "bindings/logits.h"
#include "kernels/kernel.h"

namespace nb = nanobind;

namespace weft {
namespace {

// Rows of the three stacked tensors of parameters, [rows, slots] each.
template <class T>
const T *row(std::uintptr_t address, std::int64_t number, std::int64_t slots) {
  return pointer<const T>(address) + number * slots;
}

TopPTables top_p_rule(std::int64_t slots, std::uintptr_t floats, std::uintptr_t ints) {
  return {row<float>(floats, 8, slots), row<float>(floats, 6, slots), row<float>(floats, 7, slots),
          row<std::int32_t>(ints, 8, slots)};
}

SlotTables tables_of(std::int64_t slots, std::int64_t vocab, std::int64_t bad_width, std::int64_t history_width,
                     std::int64_t ends_width, std::uintptr_t floats, std::uintptr_t longs, std::uintptr_t ints,
                     std::uintptr_t counts, std::uintptr_t prompt, std::uintptr_t bias, std::uintptr_t bad_words,
                     std::uintptr_t history, std::uintptr_t ends) {
  const PenaltyTables penalties{slots,
                                vocab,
                                bad_width,
                                history_width,
                                row<std::int32_t>(ints, 1, slots),
                                row<float>(floats, 3, slots),
                                row<float>(floats, 4, slots),
                                row<float>(floats, 5, slots),
                                pointer<const std::int32_t>(counts),
                                pointer<const std::uint32_t>(prompt),
                                pointer<const float>(bias),
                                row<std::int32_t>(ints, 2, slots),
                                pointer<const std::int32_t>(bad_words),
                                pointer<const std::int32_t>(history),
                                row<std::int32_t>(ints, 6, slots),
                                row<std::int32_t>(ints, 7, slots)};
  return {penalties,
          row<float>(floats, 0, slots),
          row<float>(floats, 1, slots),
          row<float>(floats, 2, slots),
          row<std::int64_t>(longs, 0, slots),
          row<std::int64_t>(longs, 1, slots),
          row<std::int32_t>(ints, 0, slots),
          row<std::int32_t>(ints, 3, slots),
          pointer<const std::int32_t>(ends),
          ends_width,
          top_p_rule(slots, floats, ints)};
}

SlotCall target_call(std::uintptr_t logits, int dtype, std::int64_t rows, std::int64_t vocab, std::int64_t stride,
                     std::int64_t positions, const SlotTables &tables, std::uintptr_t slot, std::uintptr_t base,
                     std::uintptr_t inputs, std::uintptr_t wanted, std::int64_t wanted_width, std::uintptr_t out) {
  SlotCall call{};
  call.logits = logits_of(logits, dtype, rows, vocab, stride);
  call.positions = positions;
  call.tables = tables;
  call.slot = pointer<const std::int64_t>(slot);
  call.base = pointer<const std::int64_t>(base);
  call.offset = 1;
  call.extra = pointer<const std::int64_t>(inputs) + 1;  // after each row's last committed token
  call.num_extra = positions - 1, call.row_stride = positions, call.token_stride = 1;
  call.wanted = pointer<const float>(wanted);
  call.wanted_width = wanted_width;
  call.keeps_min_tokens = true;
  call.out = pointer<std::int64_t>(out);
  return call;
}

SlotCall draft_call(std::uintptr_t logits, int dtype, std::int64_t rows, std::int64_t vocab, std::int64_t stride,
                    std::int64_t number, const SlotTables &tables, std::uintptr_t slot, std::uintptr_t base,
                    std::uintptr_t count, std::uintptr_t drafts, std::uintptr_t wanted, std::int64_t wanted_width,
                    std::uintptr_t proposed, std::uintptr_t d2t, std::uintptr_t out, std::uintptr_t drafts_host) {
  const std::int64_t slots = tables.penalties.slots;
  SlotCall call{};
  call.logits = logits_of(logits, dtype, rows, vocab, stride);
  call.positions = 1;
  call.tables = tables;
  call.slot = pointer<const std::int64_t>(slot);
  call.base = pointer<const std::int64_t>(base);
  call.count = pointer<const std::int64_t>(count);
  call.offset = 2;
  call.extra = pointer<const std::int64_t>(drafts);
  call.num_extra = number - 1, call.row_stride = 1, call.token_stride = slots, call.extra_by_slot = true;
  call.first_extra = number - 1;
  call.wanted = pointer<const float>(wanted);
  call.wanted_width = wanted_width;
  call.d2t = pointer<const std::int64_t>(d2t);
  call.out = pointer<std::int64_t>(out);
  call.draft_number = number;
  if (proposed) call.proposed = pointer<const std::int64_t>(proposed) + (number - 1) * slots;
  call.drafts = pointer<std::int64_t>(drafts) + (number - 1) * slots;
  if (drafts_host) call.drafts_host = pointer<std::int64_t>(drafts_host) + (number - 1) * slots;
  return call;
}

AdvanceCall advance_call(std::int64_t rows, std::int64_t width, std::int64_t slots, std::uintptr_t slot,
                         std::uintptr_t base, std::uintptr_t inputs, std::uintptr_t sampled, bool is_counted,
                         std::uintptr_t count, std::uintptr_t tokens, std::uintptr_t verified,
                         std::int64_t verified_width, std::uintptr_t last_token, std::uintptr_t length,
                         std::uintptr_t proposed, std::uintptr_t drafts, std::int64_t max_drafts, std::uintptr_t floats,
                         std::uintptr_t ints, std::uintptr_t counts, std::uintptr_t history, std::int64_t vocab,
                         std::int64_t history_width, std::uintptr_t verified_host) {
  AdvanceCall call{};
  call.rows = rows, call.width = width, call.slots = slots, call.padding_slot = slots - 1;
  call.slot = pointer<const std::int64_t>(slot), call.base = pointer<const std::int64_t>(base);
  call.inputs = pointer<const std::int64_t>(inputs), call.sampled = pointer<const std::int64_t>(sampled);
  call.is_counted = is_counted;
  call.count = pointer<std::int64_t>(count), call.tokens = pointer<std::int64_t>(tokens);
  call.verified = pointer<std::int64_t>(verified), call.verified_width = verified_width;
  call.verified_host = pointer<std::int64_t>(verified_host);
  call.last_token = pointer<std::int64_t>(last_token), call.length = pointer<std::int64_t>(length);
  call.proposed = pointer<std::int64_t>(proposed), call.drafts = pointer<std::int64_t>(drafts);
  call.max_drafts = max_drafts;
  call.active = row<std::int32_t>(ints, 1, slots), call.held = row<std::int32_t>(ints, 5, slots);
  call.counts = pointer<std::int32_t>(counts), call.history = pointer<std::int32_t>(history);
  call.vocab = vocab, call.history_width = history_width;
  call.top_p = pointer<float>(floats) + slots, call.top_p_rule = top_p_rule(slots, floats, ints);
  return call;
}

KeepCall keep_call(std::uintptr_t logits, int dtype, std::int64_t rows, std::int64_t vocab, std::int64_t stride,
                   std::uintptr_t kept, std::int64_t positions, std::int64_t slots, std::uintptr_t slot,
                   std::uintptr_t ints) {
  return {logits_of(logits, dtype, rows, vocab, stride),
          pointer<void>(kept),
          positions,
          slots,
          pointer<const std::int64_t>(slot),
          row<std::int32_t>(ints, 4, slots)};
}

}  // namespace

void bind_slots(nb::module_ &m) {
  nb::class_<SlotTables>(m, "SlotTables")
      .def("__init__", [](SlotTables *self, std::int64_t slots, std::int64_t vocab, std::int64_t bad_width,
                          std::int64_t history_width, std::int64_t ends_width, std::uintptr_t floats,
                          std::uintptr_t longs, std::uintptr_t ints, std::uintptr_t counts, std::uintptr_t prompt,
                          std::uintptr_t bias, std::uintptr_t bad_words, std::uintptr_t history, std::uintptr_t ends) {
        new (self) SlotTables{tables_of(slots, vocab, bad_width, history_width, ends_width, floats, longs, ints, counts,
                                        prompt, bias, bad_words, history, ends)};
      });
  nb::class_<SlotCall>(m, "SlotCall");
  m.def("target_call", &target_call);
  m.def("draft_call", &draft_call);
  m.def("sample_slots_cpu", [](const SlotCall &call, int threads) {
    return kernel_of([call, threads] { sample_slots_cpu(call, threads); });
  });
  m.def("sample_slots_cuda", [](const SlotCall &call, int sms, std::uintptr_t stream) {
    const nb::gil_scoped_release release;
    return sample_slots_cuda(call, sms, pointer<void>(stream));
  });
  nb::class_<AdvanceCall>(m, "AdvanceCall");
  m.def("advance_call", &advance_call);
  m.def("advance_slots_cpu", [](const AdvanceCall &call) { return kernel_of([call] { advance_slots_cpu(call); }); });
  m.def("advance_slots_cuda", [](const AdvanceCall &call, std::uintptr_t stream) {
    const nb::gil_scoped_release release;
    return advance_slots_cuda(call, pointer<void>(stream));
  });
  nb::class_<KeepCall>(m, "KeepCall");
  m.def("keep_call", &keep_call);
  m.def("keep_logits_cpu", [](const KeepCall &call) { return kernel_of([call] { keep_logits_cpu(call); }); });
  m.def("keep_logits_cuda", [](const KeepCall &call, std::uintptr_t stream) {
    const nb::gil_scoped_release release;
    return keep_logits_cuda(call, pointer<void>(stream));
  });
}

}  // namespace weft
