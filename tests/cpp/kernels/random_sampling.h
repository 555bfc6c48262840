// Random calls of the kernels that sampling consists of, and the memory that they point to.
#pragma once

#include <optional>

#include "kernels/sampling/penalties.h"
#include "kernels/sampling/sampling.h"
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
  std::vector<float> bias =
      filled<float>(slots * known, [] { return any(0, 9) ? 0.0f : one_of({-INFINITY, INFINITY, 100.0f, -0.1f}); });
  std::vector<std::int32_t> biased = filled<std::int32_t>(slots, [] { return any(0, 1); });
  // Of few different tokens, so that words are complete often.
  std::vector<std::int32_t> bad_words =
      filled<std::int32_t>(slots * bad_width, [&] { return any(0, 2) ? any(0, known < 3 ? known : 3) : -1; });
  std::vector<std::int32_t> history = filled<std::int32_t>(slots * length, [] { return any(-1, 3); });
  std::vector<std::int64_t> slot = filled<std::int64_t>(rows, [&] { return any(-1, slots); });
  std::vector<std::int64_t> history_length = filled<std::int64_t>(rows, [&] { return any(0, length + 1); });
  std::vector<std::int64_t> extra = filled<std::int64_t>(rows * width, [&] { return any(-1, coin() ? 3 : known); });
  std::vector<std::int64_t> num_extra = filled<std::int64_t>(rows, [&] { return any(0, width + 1); });
  std::vector<std::int64_t> d2t = filled<std::int64_t>(vocab, [&] { return any(-vocab, known); });
  PenalizeCall call{
      logits.view(),
      {slots, known, bad_width, length, active.data(), repetition.data(), presence.data(), frequency.data(),
       counts.data(), prompt.data(), bias.data(), biased.data(), bad_words.data(), history.data()},
      slot.data(),
      history_length.data(),
      extra.data(),
      num_extra.data(),
      width,
      coin() ? d2t.data() : nullptr};
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

}  // namespace weft
