// Random calls of the kernels that sampling consists of, and the memory that they point to.
#pragma once

#include <cfloat>
#include <optional>

#include "kernels/sampling/penalties.h"
#include "kernels/sampling/sampling.h"
#include "kernels/sampling/slots.h"
#include "kernels/sampling/suppress_ends.h"
#include "kernels/sampling/truncation.h"
#include "random_calls.h"

namespace weft {

struct AnySampling {
  std::int64_t rows = any(1, 3), vocab = one_of<std::int64_t>({1, 3, 4, 5, 64, 1023, 5000});
  AnyLogits logits{any_dtype(), rows, vocab};
  std::vector<float> temperature = filled<float>(rows, [] { return coin() ? 0.0f : 2 * uniform(); });
  std::vector<float> floor = filled<float>(rows, [] { return one_of({-INFINITY, -1.0f, 0.0f, 2.0f, 40.0f}); });
  std::vector<std::int64_t> seed = filled<std::int64_t>(rows, [] { return g_random(); });
  std::vector<std::int64_t> position = filled<std::int64_t>(rows, [] { return any(0, 1ll << 40); });
  std::vector<std::int64_t> d2t = filled<std::int64_t>(vocab, [&] { return any(0, 3 * vocab); });
  std::vector<std::int64_t> out = filled<std::int64_t>(rows, [] { return -7; });
  SampleCall call{logits.view(),
                  temperature.data(),
                  seed.data(),
                  position.data(),
                  coin() ? d2t.data() : nullptr,
                  coin() ? floor.data() : nullptr,
                  out.data()};
};

struct AnyTruncation {
  std::int64_t rows = any(1, 3), vocab = one_of<std::int64_t>({1, 3, 4, 63, 64, 65, 256, 300, 1023, 5000});
  AnyLogits logits{any_dtype(), rows, vocab};
  std::vector<float> temperature =
      filled<float>(rows, [] { return any(0, 9) ? 2 * uniform() : one_of({0.0f, 1e-5f, 1e9f, INFINITY, NAN}); });
  std::vector<std::int32_t> top_k = filled<std::int32_t>(rows, [&] { return coin() ? 0 : any(1, vocab + 1); });
  std::vector<float> top_p = filled<float>(rows, [] { return coin() ? 1.0f : one_of({0.0f, 1e-9f, uniform(), NAN}); });
  std::vector<float> min_p = filled<float>(rows, [] { return coin() ? 0.0f : one_of({1e-40f, uniform() / 9, 2.0f}); });
  std::vector<float> floor = filled<float>(rows, [] { return -7; });
  TruncateCall call{logits.view(), temperature.data(), top_k.data(), top_p.data(), min_p.data(), floor.data()};
};

struct AnyPenalties {
  std::int64_t rows = any(1, 5), vocab = one_of<std::int64_t>({1, 3, 63, 64, 65, 1023, 2000}), slots = any(1, 4);
  std::int64_t known = one_of<std::int64_t>({vocab, vocab, vocab + 40, vocab / 2 + 1});  // of the tables
  std::int64_t bad_width = one_of<std::int64_t>({0, 1, 7, 600}), length = any(1, 40), width = any(0, 4);
  AnyLogits logits{any_dtype(), rows, vocab};
  std::vector<std::int32_t> active = filled<std::int32_t>(slots, [] { return any(0, 3); });
  std::vector<float> repetition = filled<float>(slots, [] { return coin() ? 1.0f : 0.5f + uniform(); });
  std::vector<float> presence = filled<float>(slots, [] { return coin() ? 0.0f : 4 * uniform() - 2; });
  std::vector<float> frequency = filled<float>(slots, [] { return coin() ? 0.0f : 4 * uniform() - 2; });
  std::vector<std::int32_t> counts = filled<std::int32_t>(slots * known, [] { return any(0, 9) ? 0 : any(1, 300); });
  std::vector<std::uint32_t> prompt =
      filled<std::uint32_t>(slots * ((known + 31) / 32), [] { return coin() ? 0 : g_random() & g_random(); });
  std::vector<float> bias = filled<float>(
      slots * known, [] { return any(0, 9) ? 0.0f : one_of({-INFINITY, INFINITY, 100.0f, -0.1f, FLT_MAX, -FLT_MAX}); });
  std::vector<std::int32_t> biased = filled<std::int32_t>(slots, [] { return any(0, 2); });
  std::vector<std::int32_t> bias_first = filled<std::int32_t>(slots, [] { return any(0, 1); });
  std::vector<std::int32_t> no_repeat = filled<std::int32_t>(slots, [] { return any(-1, 4); });
  // Of few different tokens, so that words are complete often.
  std::vector<std::int32_t> bad_words =
      filled<std::int32_t>(slots * bad_width, [&] { return any(0, 2) ? any(0, known < 3 ? known : 3) : -1; });
  std::vector<std::int32_t> history = filled<std::int32_t>(slots * length, [] { return any(-1, 3); });
  std::vector<std::int64_t> slot = filled<std::int64_t>(rows, [&] { return any(-1, slots); });
  std::vector<std::int64_t> history_length = filled<std::int64_t>(rows, [&] { return any(0, length + 1); });
  std::vector<std::int64_t> extra = filled<std::int64_t>(rows * width, [&] { return any(-1, coin() ? 3 : known); });
  std::vector<std::int64_t> num_extra = filled<std::int64_t>(rows, [&] { return any(0, width + 1); });
  std::vector<std::int64_t> d2t = filled<std::int64_t>(vocab, [&] { return any(-vocab, known); });
  std::vector<float> temperature = filled<float>(rows, [] { return coin() ? 0.0f : 2 * uniform(); });
  PenalizeCall call{logits.view(),
                    {slots, known, bad_width, length, active.data(), repetition.data(), presence.data(),
                     frequency.data(), counts.data(), prompt.data(), bias.data(), biased.data(), bad_words.data(),
                     history.data(), bias_first.data(), no_repeat.data()},
                    slot.data(),
                    history_length.data(),
                    extra.data(),
                    num_extra.data(),
                    width,
                    coin() ? d2t.data() : nullptr,
                    temperature.data()};
  LevelCall level{logits.view(), call.tables, slot.data()};
};

struct AnySuppression {
  std::int64_t rows = any(1, 5), vocab = one_of<std::int64_t>({1, 3, 64, 65, 1023}), slots = any(1, 4);
  std::int64_t width = any(0, 3);
  AnyLogits logits{any_dtype(), rows, vocab};
  std::vector<std::int32_t> ends = filled<std::int32_t>(slots * width, [&] { return any(-1, vocab); });
  std::vector<std::int64_t> until = filled<std::int64_t>(slots, [] { return any(0, 9); });
  std::vector<std::int64_t> slot = filled<std::int64_t>(rows, [&] { return any(-1, slots); });
  std::vector<std::int64_t> position = filled<std::int64_t>(rows, [] { return any(0, 9); });
  SuppressCall call{logits.view(), ends.data(), until.data(), slots, width, slot.data(), position.data()};
};

struct AnyTopP {
  std::int64_t slots;
  std::vector<float> first = filled<float>(slots, [] { return uniform(); });
  std::vector<float> decay = filled<float>(slots, [] { return coin() ? 1.0f : uniform(); });
  std::vector<float> least = filled<float>(slots, [] { return coin() ? 0.0f : uniform() / 2; });
  std::vector<std::int32_t> reset = filled<std::int32_t>(slots, [] { return any(-1, 2); });
  TopPTables tables() const { return {first.data(), decay.data(), least.data(), reset.data()}; }
};

// A call for the target's positions, or for one draft; the slots of its rows differ.
struct AnySlots {
  AnyPenalties p;
  bool is_draft = coin();
  std::int64_t batch = any(1, p.slots), positions = is_draft ? 1 : any(1, 3), max_drafts = any(1, 4);
  std::int64_t number = is_draft ? any(1, max_drafts) : 0, ends_width = any(0, 2);
  AnyLogits logits{any_dtype(), batch *positions, p.vocab};
  std::vector<float> temperature = filled<float>(p.slots, [] { return coin() ? 0.0f : 2 * uniform(); });
  std::vector<float> top_p = filled<float>(p.slots, [] { return coin() ? 1.0f : uniform(); });
  std::vector<float> min_p = filled<float>(p.slots, [] { return coin() ? 0.0f : uniform() / 9; });
  AnyTopP top_p_rule{p.slots};
  std::vector<float> wanted = filled<float>(p.slots * 4, [] { return coin() ? -1.0f : uniform(); });
  std::vector<std::int64_t> seed = filled<std::int64_t>(p.slots, [] { return g_random(); });
  std::vector<std::int64_t> until = filled<std::int64_t>(p.slots, [] { return any(0, 30); });
  std::vector<std::int32_t> top_k = filled<std::int32_t>(p.slots, [] { return coin() ? 0 : any(1, 9); });
  std::vector<std::int32_t> limit = filled<std::int32_t>(p.slots, [] { return any(0, 5); });
  std::vector<std::int32_t> ends = filled<std::int32_t>(p.slots * ends_width, [&] { return any(-1, p.vocab); });
  std::vector<std::int64_t> slot, out = filled<std::int64_t>(batch * positions, [] { return -7; });
  std::vector<std::int64_t> base = filled<std::int64_t>(batch, [&] { return any(0, p.length); });
  std::vector<std::int64_t> count = filled<std::int64_t>(batch, [] { return any(0, 2); });
  std::vector<std::int64_t> inputs = filled<std::int64_t>(batch * positions, [&] { return any(-1, p.known); });
  std::vector<std::int64_t> drafts = filled<std::int64_t>(max_drafts * p.slots, [&] { return any(-1, p.known); });
  std::vector<std::int64_t> drafts_host = drafts;
  std::vector<std::int64_t> proposed = filled<std::int64_t>(p.slots, [&] { return any(-1, p.known); });
  // Of the target's tokens: a draft may be any of them, known to the penalties or not.
  std::vector<std::int64_t> d2t = filled<std::int64_t>(p.vocab, [&] { return any(0, 3 * p.vocab); });
  SlotCall call{};

  AnySlots() {
    for (std::int64_t b = 0; b < batch; ++b) slot.push_back(b);
    call.logits = logits.view(), call.positions = positions;
    call.tables = {p.call.tables, temperature.data(), top_p.data(), min_p.data(), seed.data(),        until.data(),
                   top_k.data(),  limit.data(),       ends.data(),  ends_width,   top_p_rule.tables()};
    call.slot = slot.data(), call.base = base.data(), call.out = out.data();
    call.wanted = coin() ? wanted.data() : nullptr, call.wanted_width = 4;
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

struct AnyAdvance {
  std::int64_t slots = any(2, 5), rows = any(1, slots), width = any(1, 4), max_drafts = any(width - 1, 5);
  std::int64_t vocab = any(1, 40), length = any(1, 20);
  std::vector<std::int64_t> slot, base = filled<std::int64_t>(rows, [&] { return any(0, length); });
  std::vector<std::int64_t> inputs = filled<std::int64_t>(rows * width, [&] { return any(-1, 2); });
  std::vector<std::int64_t> sampled = filled<std::int64_t>(rows * width, [&] { return any(-1, 2); });
  std::vector<std::int64_t> count = filled<std::int64_t>(rows, [&] { return any(0, width - 1); });
  std::vector<std::int64_t> tokens = filled<std::int64_t>(rows * width, [] { return -7; });
  std::vector<std::int64_t> verified = filled<std::int64_t>(slots * (max_drafts + 2), [] { return -7; });
  std::vector<std::int64_t> verified_host = verified;
  std::vector<std::int64_t> last_token = filled<std::int64_t>(slots, [] { return -7; });
  std::vector<std::int64_t> lengths = filled<std::int64_t>(slots, [] { return -7; });
  std::vector<std::int64_t> proposed = filled<std::int64_t>(slots, [] { return -7; });
  std::vector<std::int64_t> drafts = filled<std::int64_t>(max_drafts * slots, [] { return -7; });
  std::vector<std::int32_t> active = filled<std::int32_t>(slots, [] { return any(0, 1); });
  std::vector<std::int32_t> held = filled<std::int32_t>(slots, [] { return any(0, 2) == 0; });
  std::vector<std::int32_t> counts = filled<std::int32_t>(slots * vocab, [] { return any(0, 3); });
  std::vector<std::int32_t> history = filled<std::int32_t>(slots * length, [] { return -1; });
  std::vector<float> top_p = filled<float>(slots, [] { return uniform(); });
  AnyTopP top_p_rule{slots};

  explicit AnyAdvance() {
    for (std::int64_t b = 0; b < rows; ++b) slot.push_back(slots - 1 - b);
  }
  AdvanceCall call(bool is_counted) {
    return {rows,
            width,
            slots,
            slots - 1,
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
            proposed.data(),
            drafts.data(),
            max_drafts,
            active.data(),
            held.data(),
            counts.data(),
            history.data(),
            vocab,
            length,
            top_p.data(),
            top_p_rule.tables()};
  }
  bool operator==(const AnyAdvance &other) const {
    return count == other.count && tokens == other.tokens && verified == other.verified && verified_host == verified &&
           verified_host == other.verified_host && last_token == other.last_token && lengths == other.lengths &&
           proposed == other.proposed && drafts == other.drafts && counts == other.counts && history == other.history &&
           top_p == other.top_p;
  }
};

}  // namespace weft
