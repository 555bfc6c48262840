// Random calls of the sampling kernels, with the memory that their pointers refer to.
#pragma once

#include <cfloat>
#include <cstring>
#include <type_traits>

#include "kernels/sampling/penalties.h"
#include "kernels/sampling/sample_rule.h"
#include "kernels/sampling/slots.h"
#include "kernels/sampling/suppress_ends.h"
#include "kernels/sampling/truncation_rule.h"
#include "random_calls.h"

namespace weft {

template <class T>
T any_of() {
  if constexpr (std::is_floating_point_v<T>) {
    return 2 * uniform();
  } else {
    return static_cast<T>(any(0, 2));
  }
}

struct AnySampling {
  std::int64_t rows = any(1, 3), vocab = one_of<std::int64_t>({1, 3, 4, 5, 64, 1023, 5000});
  AnyLogits logits{any_dtype(), rows, vocab};
  std::vector<RowDraw> draws;
  std::vector<std::int64_t> d2t = filled<std::int64_t>(vocab, [&] { return any(0, 3 * vocab); });
  std::vector<std::int64_t> out = filled<std::int64_t>(rows, [] { return -7; });
  SampleCall call{};

  AnySampling() {
    for (std::int64_t i = 0; i < rows; ++i) {
      const float temperature = coin() ? 0.0f : 2 * uniform();
      const float floor = coin() ? -INFINITY : one_of({-1.0f, 0.0f, 2.0f, 40.0f});
      draws.emplace_back(temperature, floor, static_cast<std::int64_t>(g_random()), any(0, 1ll << 40));
    }
    call = {logits.view(), draws.data(), coin() ? d2t.data() : nullptr, out.data()};
  }
  AnySampling(const AnySampling &) = delete;
};

struct AnyTruncation {
  std::int64_t rows = any(1, 3), vocab = one_of<std::int64_t>({1, 3, 4, 63, 64, 65, 256, 300, 1023, 5000});
  AnyLogits logits{any_dtype(), rows, vocab};
  std::vector<SlotRecord> records = filled<SlotRecord>(rows, [&] {
    SlotRecord r;
    r.temperature = any(0, 9) ? 2 * uniform() : one_of({0.0f, 1e-5f, 1e9f, INFINITY, NAN});
    r.top_k = coin() ? 0 : static_cast<std::int32_t>(any(1, vocab + 1));
    r.top_p = coin() ? 1.0f : one_of({0.0f, 1e-9f, uniform(), NAN});
    r.min_p = coin() ? 0.0f : one_of({1e-40f, uniform() / 9, 2.0f});
    return r;
  });
  std::vector<Cuts> cuts;
  std::vector<float> floor = filled<float>(rows, [] { return -7; });
  TruncateCall call{};

  AnyTruncation() {
    for (const SlotRecord &r : records) cuts.emplace_back(r, r.temperature, r.top_p, vocab);
    call = {logits.view(), cuts.data(), floor.data()};
  }
  AnyTruncation(const AnyTruncation &) = delete;
};

// Returns a slot record with random parameters.
inline SlotRecord any_record() {
  SlotRecord r;
  // A field that has no line below gets any value of its type, or stays neutral.
#define WEFT_FIELD(type, name, neutral, doc) \
  if (coin()) r.name = any_of<type>();
  WEFT_SLOT_FIELDS(WEFT_FIELD)
#undef WEFT_FIELD
  r.seed = g_random();
  r.ends_allowed_from = any(0, 30);
  r.temperature = coin() ? 0.0f : 2 * uniform();
  r.top_p = coin() ? 1.0f : uniform();
  r.top_p_start = uniform();
  r.top_p_decay = coin() ? 1.0f : uniform();
  r.top_p_min = coin() ? 0.0f : uniform() / 2;
  r.min_p = coin() ? 0.0f : uniform() / 9;
  r.repetition_penalty = coin() ? 1.0f : 0.5f + uniform();
  r.presence_penalty = coin() ? 0.0f : 4 * uniform() - 2;
  r.frequency_penalty = coin() ? 0.0f : 4 * uniform() - 2;
  r.top_k = coin() ? 0 : static_cast<std::int32_t>(any(1, 9));
  r.top_p_reset_id = static_cast<std::int32_t>(any(-1, 2));
  r.changes_logits = static_cast<std::int32_t>(any(0, 3));
  r.bias_kind = one_of({BiasKind::kNone, BiasKind::kPlain, BiasKind::kWide});
  r.penalties_after_temperature = coin();
  r.no_repeat_ngram_size = static_cast<std::int32_t>(any(-1, 4));
  r.max_drafts = static_cast<std::int32_t>(any(0, 5));
  r.wants_logprobs = coin();
  r.is_held = any(0, 2) == 0;
  return r;
}

// Slot tables with random parameters and texts.
struct AnySlotTables {
  std::int64_t vocab, slots = any(2, 5), bad_width = one_of<std::int64_t>({0, 1, 7, 600}), length = any(1, 40);
  std::int64_t ends_width = any(0, 3), num_ends;
  std::vector<SlotRecord> records = filled<SlotRecord>(slots, any_record);
  std::vector<std::int32_t> counts = filled<std::int32_t>(slots * vocab, [] { return any(0, 9) ? 0 : any(1, 300); });
  std::vector<std::uint32_t> prompt =
      filled<std::uint32_t>(slots * ((vocab + 31) / 32), [] { return coin() ? 0 : g_random() & g_random(); });
  std::vector<float> bias = filled<float>(
      slots * vocab, [] { return any(0, 9) ? 0.0f : one_of({-INFINITY, INFINITY, 100.0f, -0.1f, FLT_MAX, -FLT_MAX}); });
  // Few different tokens, so that the history often completes a bad word.
  std::vector<std::int32_t> bad_words =
      filled<std::int32_t>(slots * bad_width, [&] { return any(0, 2) ? any(0, vocab < 3 ? vocab : 3) : -1; });
  std::vector<std::int32_t> history = filled<std::int32_t>(slots * length, [] { return any(-1, 3); });
  std::vector<std::int32_t> ends = filled<std::int32_t>(slots * ends_width, [&] { return any(-1, num_ends); });

  // `vocab_` is the target's number of tokens, `columns` the number of logits in a row.
  AnySlotTables(std::int64_t vocab_, std::int64_t columns) : vocab(vocab_), num_ends(columns) {}
  SlotTables view() {
    return {slots,         vocab,         bad_width,   length,           ends_width,     records.data(),
            counts.data(), prompt.data(), bias.data(), bad_words.data(), history.data(), ends.data()};
  }
};

struct AnyPenalties {
  std::int64_t rows = any(1, 5), vocab = one_of<std::int64_t>({1, 3, 63, 64, 65, 1023, 2000});
  std::int64_t known = one_of<std::int64_t>({vocab, vocab, vocab + 40, vocab / 2 + 1});  // vocabulary of the tables
  AnySlotTables tables{known, vocab};
  std::int64_t slots = tables.slots, length = tables.length, width = any(0, 4);
  AnyLogits logits{any_dtype(), rows, vocab};
  std::vector<std::int64_t> slot = filled<std::int64_t>(rows, [&] { return any(-1, slots); });
  std::vector<std::int64_t> history_length = filled<std::int64_t>(rows, [&] { return any(0, length + 1); });
  std::vector<std::int64_t> extra = filled<std::int64_t>(rows * width, [&] { return any(-1, coin() ? 3 : known); });
  std::vector<std::int64_t> num_extra = filled<std::int64_t>(rows, [&] { return any(0, width + 1); });
  std::vector<std::int64_t> d2t = filled<std::int64_t>(vocab, [&] { return any(-vocab, known); });
  std::vector<float> temperature = filled<float>(rows, [] { return coin() ? 0.0f : 2 * uniform(); });
  PenalizeCall call{logits.view(),     tables.view(),    slot.data(), history_length.data(),
                    extra.data(),      num_extra.data(), width,       coin() ? d2t.data() : nullptr,
                    temperature.data()};
  LevelCall level{logits.view(), call.tables, slot.data()};
};

struct AnySuppression {
  std::int64_t rows = any(1, 5), vocab = one_of<std::int64_t>({1, 3, 64, 65, 1023});
  AnySlotTables tables{vocab, vocab};
  AnyLogits logits{any_dtype(), rows, vocab};
  std::vector<std::int64_t> slot = filled<std::int64_t>(rows, [&] { return any(-1, tables.slots); });
  std::vector<std::int64_t> position = filled<std::int64_t>(rows, [] { return any(0, 30); });
  SuppressCall call{logits.view(), tables.view(), slot.data(), position.data()};
};

// A random call for all positions of the target, or for one draft. Each batch row has its own slot.
struct AnySlots {
  AnyPenalties p;
  bool is_draft = coin();
  std::int64_t batch = any(1, p.slots), positions = is_draft ? 1 : any(1, 3), max_drafts = any(1, 4);
  std::int64_t number = is_draft ? any(1, max_drafts) : 0;
  AnyLogits logits{any_dtype(), batch *positions, p.vocab};
  std::vector<float> temperatures = filled<float>(p.slots * 4, [] { return coin() ? -1.0f : uniform(); });
  std::vector<std::int64_t> slot, out = filled<std::int64_t>(batch * positions, [] { return -7; });
  std::vector<std::int64_t> base = filled<std::int64_t>(batch, [&] { return any(0, p.length); });
  std::vector<std::int64_t> count = filled<std::int64_t>(batch, [] { return any(0, 2); });
  std::vector<std::int64_t> inputs = filled<std::int64_t>(batch * positions, [&] { return any(-1, p.known); });
  std::vector<std::int64_t> drafts = filled<std::int64_t>(max_drafts * p.slots, [&] { return any(-1, p.known); });
  std::vector<std::int64_t> drafts_host = drafts;
  std::vector<std::int64_t> proposed = filled<std::int64_t>(p.slots, [&] { return any(-1, p.known); });
  // A draft may be any token of the target, including those outside the penalty tables.
  std::vector<std::int64_t> d2t = filled<std::int64_t>(p.vocab, [&] { return any(0, 3 * p.vocab); });
  SlotCall call{};

  AnySlots() {
    for (std::int64_t b = 0; b < batch; ++b) slot.push_back(b);
    call.logits = logits.view(), call.positions = positions;
    call.tables = p.call.tables;
    call.slot = slot.data(), call.base = base.data(), call.out = out.data();
    call.temperatures = coin() ? temperatures.data() : nullptr, call.temperatures_width = 4;
    call.keeps_min_tokens = !is_draft;
    call.d2t = coin() ? d2t.data() : nullptr;
    call.draft_number = number;
    call.drafts = is_draft ? drafts.data() + (number - 1) * p.slots : nullptr;
    call.drafts_host = is_draft ? drafts_host.data() + (number - 1) * p.slots : nullptr;
    if (is_draft) {
      call.count = count.data(), call.offset = 2, call.extra = drafts.data(), call.num_extra = number - 1;
      call.row_stride = 1, call.token_stride = p.slots, call.extra_by_slot = true, call.first_extra = number - 1;
      call.proposed = coin() ? proposed.data() : nullptr;
    } else {
      call.offset = 1, call.extra = inputs.data() + 1, call.num_extra = positions - 1;
      call.row_stride = positions, call.token_stride = 1;
    }
  }
  AnySlots(const AnySlots &) = delete;
};

inline bool same_records(const std::vector<SlotRecord> &a, const std::vector<SlotRecord> &b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(SlotRecord)) == 0;
}

struct AnyAdvance {
  std::int64_t vocab = any(1, 40);
  AnySlotTables tables{vocab, vocab};
  std::int64_t slots = tables.slots, rows = any(1, slots), width = any(1, 4), max_drafts = any(width - 1, 5);
  std::int64_t length = tables.length;
  std::vector<std::int64_t> slot, base = filled<std::int64_t>(rows, [&] { return any(0, length); });
  std::vector<std::int64_t> inputs = filled<std::int64_t>(rows * width, [&] { return any(-1, 2); });
  std::vector<std::int64_t> sampled = filled<std::int64_t>(rows * width, [&] { return any(-1, 2); });
  std::vector<std::int64_t> count = filled<std::int64_t>(rows, [&] { return any(0, width - 1); });
  std::vector<std::int64_t> tokens = filled<std::int64_t>(rows * width, [] { return -7; });
  std::vector<std::int64_t> verified = filled<std::int64_t>(slots * (max_drafts + 2), [] { return -7; });
  std::vector<std::int64_t> verified_host = verified;
  std::vector<std::int64_t> last_token = filled<std::int64_t>(slots, [] { return -7; });
  std::vector<std::int64_t> lengths = filled<std::int64_t>(slots, [] { return -7; });
  std::vector<std::int64_t> num_verified = filled<std::int64_t>(slots, [] { return -7; });
  std::vector<std::int64_t> drafts = filled<std::int64_t>(max_drafts * slots, [] { return -7; });

  explicit AnyAdvance() {
    for (std::int64_t b = 0; b < rows; ++b) slot.push_back(slots - 1 - b);
  }
  AdvanceCall call(bool is_counted) {
    return {rows,
            width,
            tables.view(),
            slot.data(),
            base.data(),
            inputs.data(),
            sampled.data(),
            is_counted,
            count.data(),
            tokens.data(),
            verified.data(),
            max_drafts + 2,
            verified_host.data(),
            last_token.data(),
            lengths.data(),
            num_verified.data(),
            drafts.data(),
            max_drafts};
  }
  bool operator==(const AnyAdvance &other) const {
    return count == other.count && tokens == other.tokens && verified == other.verified && verified_host == verified &&
           verified_host == other.verified_host && last_token == other.last_token && lengths == other.lengths &&
           num_verified == other.num_verified && drafts == other.drafts && tables.counts == other.tables.counts &&
           tables.history == other.tables.history && same_records(tables.records, other.tables.records);
  }
};

}  // namespace weft
