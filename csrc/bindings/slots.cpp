// Slot records and sampling by slot, for Python. Arguments are addresses and sizes: weft.ops checks the tensors and
// passes their addresses.
#include "kernels/sampling/slots.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstddef>
#include <cstring>

#include "bindings/bind.h"
#include "bindings/logits.h"
#include "kernels/kernel.h"
#include "kernels/sampling/gumbel.h"

namespace nb = nanobind;

namespace weft {
namespace {

template <class T>
constexpr const char *format_of() {  // as numpy names it
  if constexpr (std::is_same_v<T, float>) return "f4";
  return sizeof(T) == 8 ? "i8" : "i4";
}

// Returns the numpy format and the offset in bytes of each record field, by name.
std::map<std::string, std::pair<std::string, std::size_t>> record_fields() {
  return {
#define WEFT_FIELD(type, name, neutral, doc) {#name, {format_of<type>(), offsetof(SlotRecord, name)}},
      WEFT_SLOT_FIELDS(WEFT_FIELD)
#undef WEFT_FIELD
  };
}

// Copies field by field, so that a gap at the end is 0.
nb::bytes bytes_of(const SlotRecord &record) {
  std::array<char, sizeof(SlotRecord)> bytes{};
#define WEFT_FIELD(type, name, neutral, doc) \
  std::memcpy(bytes.data() + offsetof(SlotRecord, name), &record.name, sizeof record.name);
  WEFT_SLOT_FIELDS(WEFT_FIELD)
#undef WEFT_FIELD
  return nb::bytes(bytes.data(), bytes.size());
}

float top_p_after(const SlotRecord &record, const std::vector<std::int64_t> &tokens) {
  float top_p = record.top_p_start;
  if (!record.changes_top_p()) return top_p;
  for (const std::int64_t token : tokens) top_p = record.next_top_p(top_p, token);
  return top_p;
}

SlotTables tables_of(std::int64_t slots, std::int64_t vocab, std::int64_t bad_width, std::int64_t history_width,
                     std::int64_t ends_width, std::uintptr_t records, std::uintptr_t counts, std::uintptr_t prompt,
                     std::uintptr_t bias, std::uintptr_t bad_words, std::uintptr_t history, std::uintptr_t ends) {
  return {slots,
          vocab,
          bad_width,
          history_width,
          ends_width,
          pointer<SlotRecord>(records),
          pointer<std::int32_t>(counts),
          pointer<const std::uint32_t>(prompt),
          pointer<const float>(bias),
          pointer<const std::int32_t>(bad_words),
          pointer<std::int32_t>(history),
          pointer<const std::int32_t>(ends)};
}

SlotCall target_call(std::uintptr_t logits, int dtype, std::int64_t rows, std::int64_t vocab, std::int64_t stride,
                     std::int64_t positions, const SlotTables &tables, std::uintptr_t slot, std::uintptr_t base,
                     std::uintptr_t inputs, std::uintptr_t temperatures, std::int64_t temperatures_width,
                     std::uintptr_t out) {
  SlotCall call{};
  call.logits = logits_of(logits, dtype, rows, vocab, stride);
  call.positions = positions;
  call.tables = tables;
  call.slot = pointer<const std::int64_t>(slot);
  call.base = pointer<const std::int64_t>(base);
  call.offset = 1;
  call.extra = pointer<const std::int64_t>(inputs) + 1;  // skip each row's last committed token: drafts follow it
  call.num_extra = positions - 1, call.row_stride = positions, call.token_stride = 1;
  call.temperatures = pointer<const float>(temperatures);
  call.temperatures_width = temperatures_width;
  call.keeps_min_tokens = true;
  call.out = pointer<std::int64_t>(out);
  return call;
}

SlotCall draft_call(std::uintptr_t logits, int dtype, std::int64_t rows, std::int64_t vocab, std::int64_t stride,
                    std::int64_t number, const SlotTables &tables, std::uintptr_t slot, std::uintptr_t base,
                    std::uintptr_t count, std::uintptr_t drafts, std::uintptr_t temperatures,
                    std::int64_t temperatures_width, std::uintptr_t proposed, std::uintptr_t d2t, std::uintptr_t out,
                    std::uintptr_t drafts_host) {
  const std::int64_t slots = tables.slots;
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
  call.temperatures = pointer<const float>(temperatures);
  call.temperatures_width = temperatures_width;
  call.d2t = pointer<const std::int64_t>(d2t);
  call.out = pointer<std::int64_t>(out);
  call.draft_number = number;
  if (proposed) call.proposed = pointer<const std::int64_t>(proposed) + (number - 1) * slots;
  call.drafts = pointer<std::int64_t>(drafts) + (number - 1) * slots;
  if (drafts_host) call.drafts_host = pointer<std::int64_t>(drafts_host) + (number - 1) * slots;
  return call;
}

AdvanceCall advance_call(std::int64_t rows, std::int64_t width, const SlotTables &tables, std::uintptr_t slot,
                         std::uintptr_t base, std::uintptr_t inputs, std::uintptr_t sampled, bool is_counted,
                         std::uintptr_t count, std::uintptr_t tokens, std::uintptr_t verified,
                         std::int64_t verified_width, std::uintptr_t verified_host, std::uintptr_t last_token,
                         std::uintptr_t length, std::uintptr_t num_verified, std::uintptr_t drafts,
                         std::int64_t max_drafts) {
  AdvanceCall call{};
  call.rows = rows, call.width = width;
  call.tables = tables;
  call.slot = pointer<const std::int64_t>(slot), call.base = pointer<const std::int64_t>(base);
  call.inputs = pointer<const std::int64_t>(inputs), call.sampled = pointer<const std::int64_t>(sampled);
  call.is_counted = is_counted;
  call.count = pointer<std::int64_t>(count), call.tokens = pointer<std::int64_t>(tokens);
  call.verified = pointer<std::int64_t>(verified), call.verified_width = verified_width;
  call.verified_host = pointer<std::int64_t>(verified_host);
  call.last_token = pointer<std::int64_t>(last_token), call.length = pointer<std::int64_t>(length);
  call.num_verified = pointer<std::int64_t>(num_verified), call.drafts = pointer<std::int64_t>(drafts);
  call.max_drafts = max_drafts;
  return call;
}

KeepCall keep_call(std::uintptr_t logits, int dtype, std::int64_t rows, std::int64_t vocab, std::int64_t stride,
                   std::uintptr_t kept, std::int64_t positions, std::int64_t slots, std::uintptr_t slot,
                   std::uintptr_t records) {
  return {logits_of(logits, dtype, rows, vocab, stride),
          pointer<void>(kept),
          positions,
          slots,
          pointer<const std::int64_t>(slot),
          pointer<const SlotRecord>(records)};
}

void bind_record(nb::module_ &m) {
  m.attr("LOWEST_TEMPERATURE") = kLowestTemperature;
  m.attr("HELD_SLOT") = kHeldSlot;
  nb::enum_<BiasKind>(m, "BiasKind", nb::is_arithmetic(), "Whether a slot's bias is read.")
      .value("NONE", BiasKind::kNone)
      .value("PLAIN", BiasKind::kPlain)
      .value("WIDE", BiasKind::kWide, "Beyond what the draw's noise can be added to in float32.");
  nb::class_<SlotRecord>(m, "SlotRecord",
                         "The numbers that a request puts on its slot's logits. `bytes(record)` is the device's form.")
      .def(nb::init<>())
#define WEFT_FIELD(type, name, neutral, doc) .def_rw(#name, &SlotRecord::name, doc)
          WEFT_SLOT_FIELDS(WEFT_FIELD)
#undef WEFT_FIELD
      .def("top_p_after", &top_p_after, nb::arg("tokens"), "Top-p after an answer's tokens, as the device computes it.")
      .def("__bytes__", &bytes_of)
      .def_static("fields", &record_fields, "Numpy format and offset in bytes of each field, by name.");
}

}  // namespace

void bind_slots(nb::module_ &m) {
  bind_record(m);
  nb::class_<SlotTables>(m, "SlotTables");
  m.def("slot_tables", &tables_of);
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
