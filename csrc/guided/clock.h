// Measures the time of a slot's guide within one token: a stopwatch around the calls of its matcher. Python-free.
//
// Work is processor time of the calling thread and of threads that work for it. The limit counts work only, so that
// load on the machine ends no request. But a matcher that waits delays the other slots too, so the sum of work and
// waiting has a second limit, at least kMinTotalNs. Only Python and plug-ins can wait (support/awake.h); a call into
// any other library that does not work was preempted. Waiting counts only while the process runs, so that stopping the
// process ends no request.
//
// A guide that stays just below the limit with every token would still delay the other slots. So work beyond a token's
// share (an eighth of the limit) is carried over: it counts as owed, and is added to the work of the next token.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace weft {

class GuideClock {
 public:
  // The kinds of matcher calls, whose times the message lists separately.
  enum Part : int { kMasks, kTaking, kTakingBack, kTrying, kForcing };
  static constexpr int kNumParts = 5;
  static constexpr std::int64_t kMinTotalNs = 2'000'000'000;
  static constexpr int kShares = 8;  // a token's share is this fraction of the limit

  GuideClock() = default;
  // With a `limit_s` of 0 there is no limit, and nothing is measured.
  explicit GuideClock(double limit_s, std::int64_t min_total_ns = kMinTotalNs);

  // Starts over for a new guide, with no work owed.
  void reset();
  // Ends the measurement of `tokens` tokens: work beyond their shares is carried over as owed, and the counts restart.
  void restart(int tokens = 1);
  // Called on the matcher's thread: `begin` starts a lap, and `lap` adds the lap's work to `part` and starts the next
  // lap.
  void begin();
  void lap(Part part);

  bool is_over() const {
    return limit_ns_ > 0 && (owed_ns_ + work_ns() > limit_ns_ || work_ns() + waited_ns() > total_limit_ns_);
  }
  // The error message once the clock is over: the work of each part, and the setting that raises the limit.
  std::string problem() const;

  std::int64_t work_ns() const;
  std::int64_t waited_ns() const;
  std::int64_t owed_ns() const { return owed_ns_; }

 private:
  std::int64_t limit_ns_ = 0, total_limit_ns_ = 0, max_age_ns_ = 0;
  struct Reading {
    std::int64_t passed_ns = 0, work_ns = 0;
  };
  static thread_local Reading last_reading;
  static Reading read_at(std::int64_t passed_ns);

  std::int64_t lap_began_ns_ = 0, lap_began_awake_ns_ = 0, lap_began_calls_ = 0;
  Reading base_;  // taken less than max_age_ns_ before the lap began
  std::array<std::int64_t, kNumParts> work_ns_{};
  // Time without work, by wall clock and by awake clock, in laps with calls that may wait. Both are sums over a token's
  // laps, because one lap is short compared with a tick of the awake clock.
  std::int64_t without_work_ns_ = 0, awake_without_work_ns_ = 0;
  std::int64_t owed_ns_ = 0;
};

}  // namespace weft
